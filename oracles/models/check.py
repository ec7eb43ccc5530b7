"""Compares the built program with the goldens of tiny_llama.py, tiny_mlx.py and smollm2.py. Standard library only.

For every directory of goldens/models: `outrider logits` with --precision f32 (tolerance 1e-4) and in the default
precision (2e-3 for `logits`, 3e-3 for `hidden_pre_norm`, whose largest of 5,120 differences lies further out), as the
largest absolute difference over the largest absolute value. With --smollm2 MODEL (the GGUF file or its conversion): 64
greedy tokens of 8 prompts, equal up to the first position whose gap between the two largest reference logits is below
5e-3, and perplexity within 0.1 %.

Usage: check.py PROGRAM [--smollm2 MODEL] [--only SUBSTRING]
"""

import argparse
import array
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"
TOLERANCE = {
    "f32": {"logits": 1e-4, "hidden_pre_norm": 1e-4},
    "default": {"logits": 2e-3, "hidden_pre_norm": 3e-3},
}
NEAR_TIE, PERPLEXITY_TOLERANCE = 5e-3, 1e-3
CODES = {"F32": "f", "I32": "i"}


def read_tensors(path: pathlib.Path) -> dict[str, tuple[list[int], array.array]]:
    """name: (shape, values) of the f32 and i32 tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            values = array.array(CODES[entry["dtype"]])
            begin, end = entry["data_offsets"]
            values.frombytes(data[8 + length + begin : 8 + length + end])
            if sys.byteorder == "big":
                values.byteswap()
            out[name] = (entry["shape"], values)
    return out


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode}: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def relative_difference(got: tuple, want: tuple, rows: array.array) -> float:
    """Largest difference of the wanted rows over their largest value; infinite for another shape or a NaN."""
    (count, width), (kept, want_width) = got[0], want[0]
    if width != want_width or kept != len(rows) or count <= max(rows):
        return float("inf")
    worst = 0.0
    for i, row in enumerate(rows):
        for a, b in zip(got[1][row * width : (row + 1) * width], want[1][i * width : (i + 1) * width]):
            difference = abs(a - b)
            if not difference <= 1e30:
                return float("inf")
            worst = max(worst, difference)
    return worst / max(abs(value) for value in want[1])


def check_case(program: str, folder: pathlib.Path, scratch: pathlib.Path) -> bool:
    golden = read_tensors(folder / "golden.safetensors")
    ids, out = scratch / "ids.txt", scratch / "out.safetensors"
    ids.write_text(" ".join(str(i) for i in golden["ids"][1]))
    good, parts = True, []
    for precision, tolerances in TOLERANCE.items():
        out.unlink(missing_ok=True)
        flags = ["--precision", "f32"] if precision == "f32" else []
        run([program, "logits", str(folder), "--ids", str(ids), "--hidden", *flags, "--out", str(out)])
        got = read_tensors(out)
        for name, tolerance in tolerances.items():
            error = relative_difference(got[name], golden[name], golden["rows"][1])
            good = good and error <= tolerance
            parts.append(f"{precision} {name} {error:.1e}")
    print(f"{'ok  ' if good else 'FAIL'} {folder.name}: {', '.join(parts)}", flush=True)
    return good


def check_smollm2(program: str, model: str) -> bool:
    good = True
    for prompt in json.loads((GOLDENS / "smollm2" / "prompts.json").read_text(encoding="utf-8"))["prompts"]:
        want = prompt["greedy"]
        tie = next((i for i, gap in enumerate(prompt["gap"]) if gap < NEAR_TIE), len(want))
        stop = len(want) if prompt["stop_at"] is None else prompt["stop_at"]
        ids = ",".join(str(i) for i in prompt["ids"])
        text = run([program, "run", model, "--ids", ids, "--temp", "0", "--max-tokens", str(len(want)), "--json"])
        got = json.loads(text)["ids"]
        compared = min(tie, stop)
        same = got[:compared] == want[:compared]
        good = good and same
        print(f"{'ok  ' if same else 'FAIL'} {prompt['name']}: {compared} of {len(want)} greedy tokens compared")
    golden = json.loads((GOLDENS / "smollm2" / "perplexity.json").read_text())
    flags = ["--data-path", str(GOLDENS / "smollm2" / golden["text"])]
    flags += ["--sequence-length", str(golden["sequence_length"]), "--json"]
    got = json.loads(run([program, "eval", "perplexity", model, *flags]))
    ratio = got["perplexity"] / golden["perplexity"] - 1
    same = got["tokens"] == golden["tokens"] and abs(ratio) <= PERPLEXITY_TOLERANCE
    print(f"{'ok  ' if same else 'FAIL'} perplexity {got['perplexity']:.5f} over {got['tokens']} tokens, {ratio:+.1e}")
    return good and same


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--smollm2", metavar="MODEL")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted((GOLDENS / "models").glob("*/golden.safetensors")):
            if args.only in file.parent.name:
                results.append(check_case(args.program, file.parent, pathlib.Path(scratch)))
    if args.smollm2:
        results.append(check_smollm2(args.program, args.smollm2))
    if not results:
        raise SystemExit("no case was compared")
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
