"""Makes goldens/models/mlx_<case>/ and goldens/models/mlx_quantizer.safetensors with mlx and mlx-lm on the CPU.

Each case is the tiny llama of tiny_llama.py with E 128, cast to a storage type, quantized by mlx-lm and saved the way
mlx-lm saves it (config.json with `quantization` and `quantization_config`). golden.safetensors holds what the other
cases hold (ids, rows, logits, hidden_pre_norm) and
  dequant.<path>    [out, in] f32   the values of some quantized modules
Reference: mlx-lm's llama with every float parameter (scales and biases too) widened to float32, so that activations
are float32. The script also runs transformers on the dequantized weights and fails when the two differ by more than
1e-5 of the largest logit.

mlx_quantizer.safetensors: `w` [rows, 128] f32 (random rows and edge cases) and, per bits b, group G and storage type,
`b<b>_g<G>_<type>.{codes u32, scales, biases}` from mx.quantize of w cast to that type.

Usage: tiny_mlx.py [CASE ...]
"""

import contextlib
import dataclasses
import io
import shutil
import sys
import tempfile
import pathlib

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model, quantize_model
from safetensors.numpy import save_file
from transformers.utils import logging

import cases
import tiny_llama

TYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
TORCH_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
K0, V0, GATE1 = "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj", "model.layers.1.mlp.gate_proj"


@dataclasses.dataclass
class Case:
    name: str
    bits: int | None = 4  # None: not quantized
    group: int = 64
    store: str = "bf16"
    mode: str = "affine"
    changes: dict = dataclasses.field(default_factory=dict)  # of config.json
    overrides: dict = dataclasses.field(default_factory=dict)  # path: {"bits", "group_size"} or False
    dequant: tuple[str, ...] = (K0,)


def all_cases() -> list[Case]:
    untied, tied = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
    out = []
    for bits in (4, 8):
        for group in (32, 64, 128):
            out.append(Case(f"mlx_b{bits}_g{group}", bits, group, changes=untied if group == 64 else tied))
    out += [Case(f"mlx_b{bits}_g64", bits, 64, changes=tied) for bits in (2, 3, 5, 6)]
    out += [Case("mlx_b3_g32", 3, 32, changes=tied), Case("mlx_b6_g128", 6, 128, changes=tied)]
    out += [Case(f"mlx_b4_g64_{store}", 4, 64, store, changes=tied) for store in ("f16", "f32")]
    out += [Case("mlx_b8_g32_f32", 8, 32, "f32", changes=tied)]
    # Additive biases beside the quantization biases.
    out += [Case("mlx_b4_g32_bias", 4, 32, changes=tied | {"attention_bias": True, "mlp_bias": True})]
    # 160 is no multiple of 64: mlx-lm leaves down_proj as it is.
    out += [Case("mlx_b4_g64_float_down", 4, 64, changes=tied | {"intermediate_size": 160})]
    # Mixed precision per path, as OptiQ files: three parts of one fused product differ, some modules stay float.
    mixed = {
        "model.embed_tokens": {"group_size": 64, "bits": 8},
        "model.layers.0.self_attn.q_proj": {"group_size": 64, "bits": 8},
        V0: {"group_size": 32, "bits": 6},
        "model.layers.0.mlp.up_proj": {"group_size": 128, "bits": 8},
        "model.layers.0.mlp.down_proj": False,
        "model.layers.1.self_attn.o_proj": {"group_size": 64, "bits": 3},
        GATE1: {"group_size": 32, "bits": 5},
        "lm_head": False,
    }
    out += [Case("mlx_mixed", 4, 64, changes=untied, overrides=mixed, dequant=("model.embed_tokens", K0, V0, GATE1))]
    traditional = tied | {"rope_traditional": True, "hidden_size": 64, "head_dim": 16, "intermediate_size": 64}
    # Interleaved rotary pairs, which only mlx-lm's llama has. Not quantized.
    out += [Case("mlx_rope_traditional", None, store="f32", changes=traditional, dequant=())]
    out += [Case("mlx_mxfp4", 4, 32, mode="mxfp4", changes=tied), Case("mlx_mxfp8", 8, 32, mode="mxfp8", changes=tied)]
    out += [Case("mlx_nvfp4", 4, 16, mode="nvfp4", changes=tied)]
    return out


def float_config(case: Case) -> dict:
    shape = {"hidden_size": 128, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 128}
    shape |= {"rms_norm_eps": 1e-6}
    return cases.small(**(shape | {"torch_dtype": TORCH_NAMES[case.store]} | case.changes))


def to_numpy(value: mx.array) -> np.ndarray:
    return np.array(value.astype(mx.float32), copy=True)


def quantized_model(case: Case, config: dict) -> tuple[nn.Module, dict]:
    """mlx-lm's llama with the case's weights, cast and quantized, and its config.json."""
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = {key: mx.array(value.numpy()) for key, value in tiny_llama.weights(case.name, config).items()}
    model.load_weights(list(weights.items()), strict=True)
    model.set_dtype(TYPES[case.store])
    if case.bits is None:
        return model, config

    def predicate(path: str, _: nn.Module) -> bool | dict:
        found = case.overrides.get(path, True)
        return found if isinstance(found, bool) else {"mode": case.mode} | found

    with contextlib.redirect_stdout(io.StringIO()):
        model, config = quantize_model(model, config, case.group, case.bits, case.mode, quant_predicate=predicate)
    config["quantization"] |= {path: False for path, value in case.overrides.items() if value is False}
    return model, config


def dequantized(module: nn.Module) -> np.ndarray:
    biases = module.get("biases")
    if module.mode == "affine":
        scales, biases = module.scales.astype(mx.float32), biases.astype(mx.float32)
        value = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits)
    else:
        kind = {"mode": module.mode, "dtype": mx.float32}
        value = mx.dequantize(module.weight, module.scales, None, module.group_size, module.bits, **kind)
    return to_numpy(value)


def reference(folder: pathlib.Path, ids: list[int]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """(logits, hidden_pre_norm, every module's float weights) of mlx-lm for the directory as written."""
    model, _ = load_model(folder)
    values = {}
    for path, module in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
        if hasattr(module, "scales"):
            values[path + ".weight"] = dequantized(module)
            if "bias" in module:
                values[path + ".bias"] = to_numpy(module.bias)
        else:
            values |= {f"{path}.{key}": to_numpy(value) for key, value in module.parameters().items()}
    model.set_dtype(mx.float32)
    seen, norm = [], model.model.norm

    class Tap(nn.Module):
        def __call__(self, x: mx.array) -> mx.array:
            seen.append(x)
            return norm(x)

    model.model.norm = Tap()
    logits = model(mx.array([ids]))[0]
    if logits.dtype != mx.float32:
        raise SystemExit(f"{folder.name}: the reference ran in {logits.dtype}")
    return to_numpy(logits), to_numpy(seen[0][0]), values


def check_with_transformers(name: str, config: dict, values: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    plain = {key: value for key, value in config.items() if not key.startswith("quantization")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        tensors = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in values.items()}
        tiny_llama.write_model(folder, tensors, 1)
        return tiny_llama.reference(folder, plain, ids, torch.float32)[0]


def make(case: Case) -> int:
    folder = tiny_llama.GOLDENS / case.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    model, config = quantized_model(case, float_config(case))
    tensors = dict(sorted(tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    tiny_llama.write_json(folder / "config.json", config)

    ids = tiny_llama.token_ids(case.name, 40, config["vocab_size"])
    logits, hidden, values = reference(folder, ids)
    scale, line = float(np.abs(logits).max()), ""
    if not config.get("rope_traditional"):
        other = check_with_transformers(case.name, config, values, ids)
        error = float(np.abs(other - logits).max()) / scale
        line = f", mlx-lm against transformers {error:.1e}"
        if error > 1e-5:
            raise SystemExit(f"{case.name}: mlx-lm and transformers differ by {error:.1e} of the largest logit")
    golden = {"ids": np.array(ids, dtype=np.int32), "rows": np.arange(len(ids), dtype=np.int32)}
    golden |= {"logits": logits, "hidden_pre_norm": hidden}
    golden |= {f"dequant.{path}": values[path + ".weight"] for path in case.dequant}
    save_file(golden, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{case.name}: {size / 1e3:.0f} kB, largest logit {scale:.3f}{line}")
    return size


def make_quantizer() -> int:
    rows = tiny_llama.generator("quantizer").standard_normal((4, 128))
    ramp = (np.arange(128) % 32 - 10) / 16  # the vector of models.md section 1.7
    edges = [ramp, -ramp, np.zeros(128), np.full(128, 0.75), np.full(128, -0.75), np.full(128, 1e-9)]
    edges += [np.abs(rows[0]), -np.abs(rows[1]), np.where(np.arange(128) % 32 == 5, 100.0, rows[2])]
    w = np.concatenate([rows, np.stack(edges)]).astype(np.float32)
    out = {"w": mx.array(w)}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for store, dtype in TYPES.items():
                if store != "f32" and group != 64:
                    continue  # the storage type matters in one place only: keep the file small
                codes, scales, biases = mx.quantize(mx.array(w).astype(dtype), group, bits)
                name = f"b{bits}_g{group}_{store}"
                out |= {f"{name}.codes": codes, f"{name}.scales": scales, f"{name}.biases": biases}
    file = tiny_llama.GOLDENS / "mlx_quantizer.safetensors"
    mx.save_safetensors(str(file), dict(sorted(out.items())))
    return file.stat().st_size


def main() -> None:
    mx.set_default_device(mx.cpu)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    total = 0
    for case in all_cases():
        if not wanted or case.name in wanted:
            total += make(case)
    if not wanted:
        total += make_quantizer()
    print(f"total {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
