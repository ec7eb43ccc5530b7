"""Makes goldens/models/rope_tables.{json,safetensors}: inverse frequencies, cos and sin of every RoPE kind.

Per entry of rope_tables.json {name, config, length, attention_factor} the tensors are, with R = head width:
  <name>.inv_freq_hf   [R/2] f32      what transformers computes (powers in float32)
  <name>.cos_hf, .sin_hf [P, R/2] f32 its cos and sin, attention factor included
  <name>.inv_freq      [R/2] f32      powers in float64, rounded once
  <name>.cos, .sin     [P, R/2] f32   angle = f32(position) * inv_freq in float32; cos and sin of that angle in float64,
                                      rounded to float32, then times f32(attention_factor) in float32
`positions` [P] i32 is shared. `length` is the sequence length that dynamic and longrope go by (null: it plays no part).

The first two rows are the oracle; the last two say which of its digits mean something: a float32 power is off by a few
units in the last place, and position times that error is an angle. The script fails when the two disagree by more than
that, and it checks the anchors below (figures computed elsewhere, by hand and from published configs).
"""

import json
import math

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import logging

import cases
import tiny_llama

POSITIONS = [0, 1, 7, 100, 1023, 4096, 5000]


def real_kinds() -> dict[str, tuple[dict, float, int, int, int | None]]:
    """name: (parameters, theta, head width, max_position_embeddings, length) with published or realistic sizes."""
    short, long = cases.longrope_factors(48)
    llama3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 |= {"original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    longrope = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    longrope |= {"original_max_position_embeddings": 4096}
    return {
        "default_1e4": ({"rope_type": "default"}, 1e4, 64, 2048, None),
        "default_1e5_smollm2": ({"rope_type": "default"}, 1e5, 64, 8192, None),
        "default_1.3e5": ({"rope_type": "default"}, 1.3e5, 64, 8192, None),
        "default_5e6_minicpm5": ({"rope_type": "default"}, 5e6, 128, 131072, None),
        "linear_8": ({"rope_type": "linear", "factor": 8.0}, 1e4, 128, 16384, None),
        "llama3_llama32_1b": (llama3, 5e5, 64, 131072, None),
        "llama3_llama31_8b": (llama3 | {"factor": 8.0}, 5e5, 128, 131072, None),
        "yarn_qwen": (yarn, 1e6, 128, 131072, None),
        "yarn_no_truncate": (yarn | {"truncate": False}, 1e6, 128, 131072, None),
        "yarn_mscale": (yarn | {"mscale": 1.0, "mscale_all_dim": 0.5, "factor": 40.0}, 1e4, 64, 1310720, None),
        "dynamic_inside": (dynamic, 1e4, 128, 4096, 4096),
        "dynamic_beyond": (dynamic, 1e4, 128, 4096, 8192),
        "longrope_short": (longrope, 1e4, 96, 131072, 4096),
        "longrope_long": (longrope, 1e4, 96, 131072, 4097),
    }


def entries() -> list[dict]:
    out = []
    for name, (parameters, theta, head, limit, length) in real_kinds().items():
        config = {"model_type": "llama", "hidden_size": head, "num_attention_heads": 1, "head_dim": head}
        config |= {"max_position_embeddings": limit, "rope_parameters": {"rope_theta": theta} | parameters}
        out.append({"name": name, "config": config, "length": length})
    for name, (parameters, theta, limit) in cases.ROPE_KINDS.items():
        config, _ = cases.rope_config(parameters, theta, limit)
        keys = ("model_type", "hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
        config = {key: config[key] for key in keys + ("rope_parameters",)}
        by_length = parameters["rope_type"] in ("dynamic", "longrope")
        out.append({"name": name, "config": config, "length": 40 if by_length else None})
    return out


def transformers_tables(config: dict, length: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(inv_freq, cos, sin, attention factor) of transformers for a sequence of `length` tokens."""
    rope = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
    if length is not None:  # the forward pass looks at the largest position to choose the frequencies
        rope(torch.zeros(1), torch.tensor([[length - 1]]))
    angles = torch.tensor(POSITIONS)[:, None].float() * rope.inv_freq[None, :].float()
    scale = rope.attention_scaling
    return rope.inv_freq.numpy().copy(), (angles.cos() * scale).numpy(), (angles.sin() * scale).numpy(), float(scale)


def exact_inv_freq(config: dict, length: int | None) -> tuple[np.ndarray, float]:
    """(inv_freq in float64, attention factor) by the formulas of models.md section 2.2."""
    p, width = config["rope_parameters"], config["head_dim"]
    theta, kind, limit = p["rope_theta"], p["rope_type"], config["max_position_embeddings"]
    power = np.arange(0, width, 2, dtype=np.float64) / width
    beta, f = theta**-power, p.get("factor")
    original = p.get("original_max_position_embeddings", limit)

    def spread(factor: float, mu: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mu * math.log(factor) + 1.0

    if kind == "default":
        return beta, 1.0
    if kind == "linear":
        return beta / f, 1.0
    if kind == "dynamic":
        if length > limit:
            theta *= (f * length / limit - (f - 1)) ** (width / (width - 2))
        return theta**-power, 1.0
    if kind == "llama3":
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        wave = 2 * math.pi / beta
        s = (original / wave - low) / (high - low)
        middle = (1 - s) * beta / f + s * beta
        return np.where(wave < original / high, beta, np.where(wave > original / low, beta / f, middle)), 1.0
    if kind == "yarn":

        def dimension(rotations: float) -> float:
            return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
        if p.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high += 0.001 if low == high else 0
        t = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
        m = p.get("attention_factor")
        if m is None and p.get("mscale") and p.get("mscale_all_dim"):
            m = spread(f, p["mscale"]) / spread(f, p["mscale_all_dim"])
        return beta * (1 - t) + beta / f * t, spread(f, 1) if m is None else m
    if kind == "longrope":
        f = limit / original if f is None else f
        m = p.get("attention_factor")
        if m is None:
            m = 1.0 if f <= 1 else math.sqrt(1 + math.log(f) / math.log(original))
        factors = p["long_factor"] if length > original else p["short_factor"]
        return beta / np.array(factors), m
    raise SystemExit(f"unknown kind {kind}")


def anchors() -> None:
    """The anchors of models.md section 2.2, against transformers."""
    kinds = real_kinds()

    def table(name: str) -> tuple[np.ndarray, float]:
        parameters, theta, head, limit, length = kinds[name]
        config = {"hidden_size": head, "num_attention_heads": 1, "head_dim": head, "max_position_embeddings": limit}
        inv, _, _, m = transformers_tables(config | {"rope_parameters": {"rope_theta": theta} | parameters}, length)
        return inv.astype(np.float64), m

    checks = []
    inv, _ = table("llama3_llama32_1b")
    beta = 5e5 ** -(np.arange(32) / 32)
    for i, want in ((13, 4.8394213e-3), (15, 1.2905479e-3), (17, 9.7082878e-5), (31, 9.4183067e-8)):
        checks.append((f"llama3 inv_{i}", inv[i], want))
    for i, want in ((15, 1.6513), (16, 3.2923), (17, 9.6667), (18, 32)):
        checks.append((f"llama3 beta/inv {i}", beta[i] / inv[i], want))
    inv, m = table("yarn_qwen")
    beta = 1e6 ** -(np.arange(64) / 64)
    checks += [("yarn inv_32", inv[32], 6.0294118e-4), ("yarn m", m, 1.1386294)]
    checks += [("yarn last unscaled", np.nonzero(beta / inv < 1.00001)[0].max(), 23)]
    checks += [("yarn first scaled", np.nonzero(beta / inv > 3.99999)[0].min(), 40)]
    inv, _ = table("dynamic_beyond")
    checks += [("dynamic theta'", inv[32] ** -2.0, 30527.737)]
    checks += [("longrope m", table("longrope_long")[1], 1.1902381)]
    for what, got, want in checks:
        error = abs(got / want - 1)
        digits = 5e-5 if "beta" in what else 5e-7
        print(f"anchor {what}: {got:.8g}, expected {want:.8g}, relative difference {error:.1e}")
        if error > digits:
            raise SystemExit(f"anchor {what} is off")


def main() -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    anchors()
    tensors, listed = {"positions": np.array(POSITIONS, dtype=np.int32)}, []
    for entry in entries():
        name, config, length = entry["name"], entry["config"], entry["length"]
        inv_hf, cos_hf, sin_hf, m_hf = transformers_tables(config, length)
        inv, m = exact_inv_freq(config, length)
        inv = inv.astype(np.float32)
        angle = np.array(POSITIONS, dtype=np.float32)[:, None] * inv[None, :]
        cos = np.cos(angle.astype(np.float64)).astype(np.float32) * np.float32(m)
        sin = np.sin(angle.astype(np.float64)).astype(np.float32) * np.float32(m)
        relative = float(np.abs(inv_hf / inv - 1).max())
        near = slice(0, POSITIONS.index(7) + 1)
        near_error = float(max(np.abs(cos - cos_hf)[near].max(), np.abs(sin - sin_hf)[near].max()))
        far_error = float(max(np.abs(cos - cos_hf).max(), np.abs(sin - sin_hf).max()))
        print(f"{name}: inv relative {relative:.1e}, cos, sin to position 7 {near_error:.1e}, to 5000 {far_error:.1e}")
        if relative > 1e-6 or abs(m / m_hf - 1) > 1e-12 or far_error > 5000 * relative * 1.5 + 1e-6:
            raise SystemExit(f"{name}: the formulas and transformers disagree")
        named = {"inv_freq_hf": inv_hf, "cos_hf": cos_hf, "sin_hf": sin_hf, "inv_freq": inv, "cos": cos, "sin": sin}
        tensors |= {f"{name}.{key}": np.ascontiguousarray(value.astype(np.float32)) for key, value in named.items()}
        listed.append(entry | {"attention_factor": m})
    save_file(tensors, tiny_llama.GOLDENS / "rope_tables.safetensors")
    tiny_llama.write_json(tiny_llama.GOLDENS / "rope_tables.json", {"positions": POSITIONS, "entries": listed})


if __name__ == "__main__":
    main()
