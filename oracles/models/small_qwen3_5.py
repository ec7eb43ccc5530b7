"""Checks the golden of the small checkpoint, and makes goldens of its quantized copy.

The small checkpoint is a Qwen3.5 of 31.5 M parameters with an MTP head, bf16, hf layout, with golden.safetensors beside
it (models.md section 6.1). It is not part of this repository; its quantized copy in models/tiny-qwen3_5-mtp is:
  outrider convert CHECKPOINT models/tiny-qwen3_5-mtp -q --q-override '*embed_tokens=8/64'

  small_qwen3_5.py check CHECKPOINT   runs transformers in float32 and compares with its golden: shows that Trunk and
                                      Head of tiny_qwen3_5.py are what the golden was made with
  small_qwen3_5.py make CHECKPOINT    writes goldens/small_qwen3_5.safetensors for the copy's dequantized values

Per prompt i of golden.json: `i.ids` [n] i32 (prompt and 96 greedy tokens, end of text ignored), `i.prompt_len` [1],
`i.greedy_argmax` [n], `i.mtp2_argmax` [n-2], and over the first 40 rows (24 in `logits`, 8 in `mtp1_logits`)
`i.logits` f32, `i.hidden_pre_norm` f32, `i.mtp1_hidden` f32, `i.mtp1_logits` f16. mtp2 is a second full pass, rows
p = (token p+2, mtp1_hidden p) at position p that see only each other.
"""

import json
import pathlib
import sys

import mlx.core as mx
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.utils import logging

import tiny_qwen3_5 as tiny

ROOT = tiny.GOLDENS.parent.parent.parent
COPY = ROOT / "models" / "tiny-qwen3_5-mtp"
TARGET = tiny.GOLDENS.parent / "small_qwen3_5.safetensors"
ROWS, LOGIT_ROWS, DRAFT_ROWS, GREEDY = 40, 24, 8, 96


def load_checkpoint(folder: pathlib.Path) -> tuple[dict, dict[str, torch.Tensor]]:
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(file)
    return json.loads((folder / "config.json").read_text()), tensors


def load_copy(folder: pathlib.Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The converted directory as hf-layout float32 values."""
    config = json.loads((folder / "config.json").read_text())
    stored = mx.load(str(folder / "model.safetensors"))
    with safe_open(folder / "model.safetensors", "np") as file:
        metadata = file.metadata()
    assert metadata["outrider.norms"] == metadata["outrider.mtp_norms"] == "one_centred"
    quantization, out = config["quantization"], {}
    for key, value in stored.items():
        path, part = key.rsplit(".", 1)
        if part in ("scales", "biases"):
            continue
        name = key.removeprefix("language_model.")
        if path + ".scales" in stored:
            own = {"bits": quantization["bits"], "group_size": quantization["group_size"]}
            own |= quantization.get(path, {})
            scales, biases = (stored[f"{path}.{end}"].astype(mx.float32) for end in ("scales", "biases"))
            value = mx.dequantize(value, scales, biases, own["group_size"], own["bits"])
        values = np.array(value.astype(mx.float32), copy=True)
        if part == "weight" and "norm" in name and not name.endswith("linear_attn.norm.weight"):
            values = values.astype(np.float64) - 1  # the reference adds 1 again
        if name.endswith("conv1d.weight"):
            values = np.moveaxis(values, 2, 1)
        out[name] = torch.from_numpy(np.ascontiguousarray(values))
    return config, out


def passes(trunk: tiny.Trunk, head: tiny.Head, ids: list[int]) -> dict[str, torch.Tensor]:
    logits, hidden = trunk.run(ids)
    m, draft_logits = head.rows(ids[1:], head.tapped(hidden)[:-1])
    _, second = head.rows(ids[2:], m[:-1])
    return {
        "logits": logits,
        "hidden_pre_norm": hidden,
        "greedy_argmax": logits.argmax(-1).int(),
        "mtp1_hidden": m,
        "mtp1_logits": draft_logits,
        "mtp2_argmax": second.argmax(-1).int(),
    }


def greedy(trunk: tiny.Trunk, ids: list[int]) -> list[int]:
    ids = list(ids)
    for _ in range(GREEDY):
        ids.append(int(trunk.run(ids)[0][-1].argmax()))
    return ids


def check(folder: pathlib.Path) -> None:
    config, tensors = load_checkpoint(folder)
    trunk = tiny.Trunk(config, tensors)
    head, golden = tiny.Head(trunk), load_file(folder / "golden.safetensors")
    for i in range(4):
        got = passes(trunk, head, golden[f"{i}.ids"].tolist())
        parts = []
        for name, value in got.items():
            want = golden[f"{i}.{name}"]
            if want.dtype == torch.int32:
                parts.append(f"{name} {int((value == want).sum())}/{len(want)}")
            else:
                parts.append(f"{name} {float((value[: len(want)].float() - want.float()).abs().max()):.1e}")
        print(f"prompt {i}: {', '.join(parts)}")


def make(folder: pathlib.Path) -> None:
    original = load_file(folder / "golden.safetensors")
    config, tensors = load_copy(COPY)
    trunk = tiny.Trunk(config, tensors)
    head, out = tiny.Head(trunk), {}
    for i in range(4):
        prompt = original[f"{i}.ids"][: int(original[f"{i}.prompt_len"][0])].tolist()
        ids = greedy(trunk, prompt)
        got = passes(trunk, head, ids)
        out |= {f"{i}.ids": torch.tensor(ids, dtype=torch.int32), f"{i}.prompt_len": torch.tensor([len(prompt)])}
        out[f"{i}.prompt_len"] = out[f"{i}.prompt_len"].int()
        kept = {"logits": LOGIT_ROWS, "mtp1_logits": DRAFT_ROWS, "hidden_pre_norm": ROWS, "mtp1_hidden": ROWS}
        for name, value in got.items():
            value = value[: kept.get(name, len(value))]
            out[f"{i}.{name}"] = (value.half() if name == "mtp1_logits" else value).clone().contiguous()
        print(f"prompt {i}: {len(prompt)} + {GREEDY} tokens, largest hidden {float(got['hidden_pre_norm'].abs().max()):.1f}")
    save_file(out, TARGET)
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    mx.set_default_device(mx.cpu)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    {"check": check, "make": make}[sys.argv[1]](pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
