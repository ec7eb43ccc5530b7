"""Compares the built program with the goldens of tiny_llama.py, tiny_mlx.py, tiny_qwen3_5.py and smollm2.py. Standard
library only.

For every directory of goldens/models and goldens/qwen3_5: `outrider logits` with --precision f32 (tolerance 1e-4) and in the default
precision (2e-3 for `logits`, 3e-3 for `hidden_pre_norm`, whose largest of 5,120 differences lies further out), as the
largest absolute difference over the largest absolute value. With --smollm2 MODEL (the GGUF file or its conversion): 64
greedy tokens of 8 prompts, equal up to the first position whose gap between the two largest reference logits is below
5e-3, and perplexity within 0.1 %. With --small CHECKPOINT (the bf16 small checkpoint with its golden.safetensors): the
gates of models.md section 6.1 in both precisions.

Usage: check.py PROGRAM [--smollm2 MODEL] [--small CHECKPOINT] [--only SUBSTRING]
"""

import argparse
import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"
TOLERANCE = {
    "f32": {"logits": 1e-4, "hidden_pre_norm": 1e-4, "mtp1_hidden": 1e-4, "mtp1_logits": 1e-4},
    "default": {"logits": 2e-3, "hidden_pre_norm": 3e-3, "mtp1_hidden": 3e-3, "mtp1_logits": 2e-3},
}
# Largest absolute differences on the small checkpoint, its mean KL divergence, and greedy tokens that may differ.
GATES = {
    "f32": {"logits": 2e-4, "hidden_pre_norm": 5e-4, "mtp1_hidden": 2e-4, "mtp1_logits": 2e-2, "kl": 1e-8, "wrong": 0},
    "default": {"logits": 2e-2, "hidden_pre_norm": 5e-2, "mtp1_hidden": 3e-2, "mtp1_logits": 4e-2, "kl": 1e-6, "wrong": 1},
}
NEAR_TIE, PERPLEXITY_TOLERANCE = 5e-3, 1e-3
CODES = {"F32": "f", "I32": "i"}


def read_tensors(path: pathlib.Path) -> dict[str, tuple[list[int], array.array]]:
    """name: (shape, values) of the f32, f16 and i32 tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "F16":
            values = array.array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
        else:
            values = array.array(CODES[entry["dtype"]], raw)
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


def run_logits(program: str, folder: pathlib.Path, ids: pathlib.Path, precision: str, mtp: bool, out: pathlib.Path):
    out.unlink(missing_ok=True)
    flags = (["--precision", "f32"] if precision == "f32" else []) + (["--mtp"] if mtp else [])
    run([program, "logits", str(folder), "--ids", str(ids), "--hidden", *flags, "--out", str(out)])
    return read_tensors(out)


def check_case(program: str, folder: pathlib.Path, scratch: pathlib.Path) -> bool:
    golden = read_tensors(folder / "golden.safetensors")
    ids, out = scratch / "ids.txt", scratch / "out.safetensors"
    ids.write_text(" ".join(str(i) for i in golden["ids"][1]))
    good, parts = True, []
    has_head = "mtp1_hidden" in golden
    for precision, tolerances in TOLERANCE.items():
        got = run_logits(program, folder, ids, precision, has_head, out)
        for name, tolerance in tolerances.items():
            if name not in golden:
                continue
            rows = golden["rows"][1] if "rows" in golden else array.array("i", range(golden[name][0][0]))
            error = relative_difference(got[name], golden[name], rows)
            good = good and error <= tolerance
            parts.append(f"{precision} {name} {error:.1e}")
    print(f"{'ok  ' if good else 'FAIL'} {folder.name}: {', '.join(parts)}", flush=True)
    return good


def divergence(got: array.array, want: array.array, width: int) -> float:
    """Sum over rows of KL(want || got)."""
    total = 0.0
    for at in range(0, len(want), width):
        p, q = want[at : at + width], got[at : at + width]
        log_p, log_q = (top + math.log(sum(math.exp(x - top) for x in z)) for z, top in ((p, max(p)), (q, max(q))))
        total += sum(math.exp(x - log_p) * ((x - log_p) - (y - log_q)) for x, y in zip(p, q))
    return total


def check_small(program: str, folder: pathlib.Path, scratch: pathlib.Path) -> bool:
    golden, ids, out = read_tensors(folder / "golden.safetensors"), scratch / "ids.txt", scratch / "out.safetensors"
    good = True
    for precision, gates in GATES.items():
        worst, kl, rows, wrong, count = dict.fromkeys(list(gates)[:4], 0.0), 0.0, 0, 0, 0
        for i in range(4):
            ids.write_text(" ".join(str(token) for token in golden[f"{i}.ids"][1]))
            got = run_logits(program, folder, ids, precision, True, out)
            for name in worst:
                want = golden[f"{i}.{name}"][1]
                worst[name] = max(worst[name], max(abs(a - b) for a, b in zip(got[name][1], want)))
            (kept, width), want = golden[f"{i}.logits"]
            kl, rows = kl + divergence(got["logits"][1], want, width), rows + kept
            for row, token in enumerate(golden[f"{i}.greedy_argmax"][1]):
                line = got["logits"][1][row * width : (row + 1) * width]
                wrong, count = wrong + (line.index(max(line)) != token), count + 1
        passed = all(worst[name] <= gates[name] for name in worst) and kl / rows <= gates["kl"] and wrong <= gates["wrong"]
        parts = [f"{name} {error:.1e} of {gates[name]:.0e}" for name, error in worst.items()]
        line = f"{', '.join(parts)}, mean KL {kl / rows:.1e} of {gates['kl']:.0e}, argmax {count - wrong}/{count}"
        print(f"{'ok  ' if passed else 'FAIL'} small checkpoint, {precision}: {line}", flush=True)
        good = good and passed
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
    parser.add_argument("--small", metavar="CHECKPOINT", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("models", "qwen3_5"):
            for file in sorted((GOLDENS / kind).glob("*/golden.safetensors")):
                if args.only in file.parent.name:
                    results.append(check_case(args.program, file.parent, pathlib.Path(scratch)))
        if args.small:
            results.append(check_small(args.program, args.small, pathlib.Path(scratch)))
    if args.smollm2:
        results.append(check_smollm2(args.program, args.smollm2))
    if not results:
        raise SystemExit("no case was compared")
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
