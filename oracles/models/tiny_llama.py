"""Makes goldens/models/<case>/ for the tiny random models in cases.py.

Per case: config.json (and config_legacy.json where the RoPE has two spellings), model.safetensors or shards with an
index, and golden.safetensors:
  ids               [T] i32   random, but 0 and V-1 come first
  rows              [R] i32   which positions the next two hold (all of them unless the sequence is long)
  logits            [R, V] f32
  hidden_pre_norm   [R, E] f32  the last layer's output before the final norm
Reference: transformers, float32, eager attention, on the values as stored (bf16 and f16 files are widened to float32).

Weights are drawn with numpy's PCG64, seeded by the case name: linear and embedding N(0, 0.02), norms 1 + N(0, 0.1),
biases N(0, 0.02). q_proj and k_proj are ten times larger, so that attention is far from uniform: with 0.02 the scores
have a deviation near 0.03, and a wrong rotation would hide below the tolerance (mutants.py prints it).

Usage: tiny_llama.py [CASE ...]
"""

import hashlib
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import cases

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens" / "models"
WEIGHT, QUERY_KEY, NORM, BIAS = 0.02, 0.2, 0.1, 0.02


def generator(*words: str) -> np.random.Generator:
    seed = hashlib.sha256("/".join(words).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed[:8], "little")))


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, in the order of the graph."""
    kind, width = config["model_type"], config["hidden_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or width // heads
    ffn, vocab = config["intermediate_size"], config["vocab_size"]
    attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    qkv_bias, o_bias = kind == "qwen2" or attention_bias, kind != "qwen2" and attention_bias
    out = {"model.embed_tokens.weight": (vocab, width)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        out[layer + "input_layernorm.weight"] = (width,)
        linear = [("q", heads * head, width, qkv_bias), ("k", kv_heads * head, width, qkv_bias)]
        linear += [("v", kv_heads * head, width, qkv_bias), ("o", width, heads * head, o_bias)]
        linear = [(f"self_attn.{name}_proj", rows, columns, bias) for name, rows, columns, bias in linear]
        linear += [("mlp.gate_proj", ffn, width, mlp_bias), ("mlp.up_proj", ffn, width, mlp_bias)]
        linear += [("mlp.down_proj", width, ffn, mlp_bias)]
        for name, rows, columns, bias in linear:
            out[f"{layer}{name}.weight"] = (rows, columns)
            if bias:
                out[f"{layer}{name}.bias"] = (rows,)
        if kind == "qwen3":
            out[layer + "self_attn.q_norm.weight"] = (head,)
            out[layer + "self_attn.k_norm.weight"] = (head,)
        out[layer + "post_attention_layernorm.weight"] = (width,)
    out["model.norm.weight"] = (width,)
    if not config.get("tie_word_embeddings", False):
        out["lm_head.weight"] = (vocab, width)
    return out


def weights(name: str, config: dict) -> dict[str, torch.Tensor]:
    out = {}
    for key, shape in shapes(config).items():
        values = generator(name, key).standard_normal(shape)
        if "norm" in key:
            values = 1 + NORM * values
        elif key.endswith(".bias"):
            values = BIAS * values
        else:
            values = (QUERY_KEY if "q_proj" in key or "k_proj" in key else WEIGHT) * values
        out[key] = torch.from_numpy(values.astype(np.float32))
    return out


def stored(tensors: dict[str, torch.Tensor], store: str) -> dict[str, torch.Tensor]:
    kinds = {"f32": [torch.float32], "bf16": [torch.bfloat16], "f16": [torch.float16]}
    cycle = kinds.get(store, [torch.bfloat16, torch.float32, torch.float16])
    return {key: value.to(cycle[i % len(cycle)]) for i, (key, value) in enumerate(tensors.items())}


def write_model(folder: pathlib.Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, total = {}, sum(value.nbytes for value in tensors.values())
    keys = list(tensors)
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = keys[len(keys) * i // shards : len(keys) * (i + 1) // shards]
        save_file({key: tensors[key] for key in part}, folder / name, metadata={"format": "pt"})
        weight_map |= {key: name for key in part}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def token_ids(name: str, count: int, vocab: int) -> list[int]:
    ids = generator(name, "ids").integers(0, vocab, count).tolist()
    return ([0, vocab - 1] + ids)[:count]


def reference(folder: pathlib.Path, config: dict, ids: list[int], dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(logits [T, V], hidden_pre_norm [T, E]) of transformers for the directory, read with `config`."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch)
        for file in folder.glob("model*"):
            shutil.copy(file, copy / file.name)
        write_json(copy / "config.json", config)
        model, info = AutoModelForCausalLM.from_pretrained(
            copy, dtype=dtype, attn_implementation="eager", output_loading_info=True
        )
    if info["missing_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"{folder.name}: {info}")
    model.eval()
    seen = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits.numpy(), seen[0].numpy()


def make(case: cases.Case, folder: pathlib.Path) -> dict:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    full = case.config | case.golden_config
    tensors = weights(case.name, full)
    if case.extra_tensors:
        vocab_width = tensors["model.embed_tokens.weight"].shape
        head = generator(case.name, "stray").standard_normal(vocab_width).astype(np.float32)
        tensors["lm_head.weight"] = torch.from_numpy(head)
        for i in range(case.config["num_hidden_layers"]):
            tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.full((full["head_dim"] // 2,), 9.0)
    write_model(folder, stored(tensors, case.store), case.shards)
    write_json(folder / "config.json", case.config)
    if case.legacy is not None:
        write_json(folder / "config_legacy.json", case.legacy)
    if case.generation_config is not None:
        write_json(folder / "generation_config.json", case.generation_config)

    source = folder
    if case.extra_tensors:  # the reference sees the file without what a loader must drop
        source = pathlib.Path(tempfile.mkdtemp())
        write_model(source, stored(weights(case.name, full), case.store), 1)
    ids = token_ids(case.name, case.tokens, full["vocab_size"])
    logits, hidden = reference(source, full, ids, torch.float32)
    scale = float(np.abs(logits).max())
    error = 0.0
    if case.tokens <= 600:  # the float32 run must itself be far inside the tolerance of 1e-4
        exact, _ = reference(source, full, ids, torch.float64)
        error = float(np.abs(exact - logits).max()) / scale
        if error > 1e-5:
            raise SystemExit(f"{case.name}: float32 and float64 differ by {error:.1e} of the largest logit")
    if case.legacy is not None:
        other, _ = reference(source, case.legacy, ids, torch.float32)
        if not np.array_equal(other, logits):
            raise SystemExit(f"{case.name}: the two spellings of the config give different logits")
    if case.extra_tensors:
        shutil.rmtree(source)
    rows = np.arange(case.tokens, dtype=np.int32)[-(case.kept_rows or case.tokens) :]
    golden = {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "rows": torch.from_numpy(rows),
        "logits": torch.from_numpy(np.ascontiguousarray(logits[rows])),
        "hidden_pre_norm": torch.from_numpy(np.ascontiguousarray(hidden[rows])),
    }
    save_file(golden, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{case.name}: {size / 1e3:.0f} kB, largest logit {scale:.3f}, float32 against float64 {error:.1e}")
    return {"size": size}


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    wanted = sys.argv[1:]
    total = 0
    for case in cases.all_cases():
        if not wanted or case.name in wanted:
            total += make(case, GOLDENS / case.name)["size"]
    print(f"total {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
