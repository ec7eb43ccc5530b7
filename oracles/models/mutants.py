"""How far plausible mistakes move the logits of the tiny models: the reason to trust the goldens' tolerances.

A second, independent forward pass in numpy float64 (it shares no code with transformers) is compared with the goldens:
unchanged it must agree, and each mistake must exceed the tolerance of the default precision (2e-3 of the largest logit)
wherever the mistake changes the mathematics of that case. Prints one line per mistake; fails when one hides.

Usage: mutants.py
"""

import json

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

import rope_tables
import tiny_llama

TOLERANCE_F32, TOLERANCE_DEFAULT = 1e-4, 2e-3


def load(name: str) -> tuple[dict, dict[str, np.ndarray], dict[str, np.ndarray]]:
    folder = tiny_llama.GOLDENS / name
    config = json.loads((folder / "config.json").read_text())
    weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as f:
            weights |= {key: f.get_tensor(key).double().numpy() for key in f.keys()}
    return config, weights, load_file(folder / "golden.safetensors")


def rms(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [T, heads, D]; cos and sin [T, D/2]."""
    half = x.shape[-1] // 2
    pairs = (np.arange(half) * 2, np.arange(half) * 2 + 1) if interleaved else (np.arange(half), np.arange(half) + half)
    a, b, out = x[..., pairs[0]], x[..., pairs[1]], np.empty_like(x)
    out[..., pairs[0]] = a * cos[:, None] - b * sin[:, None]
    out[..., pairs[1]] = b * cos[:, None] + a * sin[:, None]
    return out


def rope(config: dict, width: int, count: int, mistake: str) -> tuple[np.ndarray, np.ndarray]:
    parameters = dict(config.get("rope_parameters") or {"rope_type": "default"})
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if mistake == "rope_kind_ignored":
        parameters = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
    if mistake == "theta_1e4":
        parameters["rope_theta"] = 10000.0
    if mistake == "no_mscale":
        parameters |= {"mscale": 0.0}
    if mistake == "mscale_zero_counts":  # transformers takes 0 as "not set"
        mu = [0.1 * parameters[key] * np.log(parameters["factor"]) + 1 for key in ("mscale", "mscale_all_dim")]
        parameters["attention_factor"] = mu[0] / mu[1]
    view = {"rope_parameters": parameters, "head_dim": width}
    inv, m = rope_tables.exact_inv_freq(view | {"max_position_embeddings": config["max_position_embeddings"]}, count)
    if mistake == "attention_factor_ignored":
        m = 1.0
    if mistake == "length_ignored" and parameters["rope_type"] in ("dynamic", "longrope"):
        inv, _ = rope_tables.exact_inv_freq(view | {"max_position_embeddings": config["max_position_embeddings"]}, 1)
    angle = np.arange(count)[:, None] * inv[None, :]
    if mistake == "rope_off_by_one":
        angle = (np.arange(count)[:, None] // 2) * inv[None, :]
    return np.cos(angle) * m, np.sin(angle) * m


def forward(config: dict, w: dict[str, np.ndarray], ids: np.ndarray, mistake: str = "") -> np.ndarray:
    """Logits [T, V] in float64."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or width // heads
    eps = 1e-3 if mistake == "eps_1e-3" else config["rms_norm_eps"]
    group, count = heads // kv_heads, len(ids)
    smollm3 = config["model_type"] == "smollm3"
    interval = config.get("no_rope_layer_interval", 4) if smollm3 else 0
    layers = config["num_hidden_layers"]
    uses_rope = [1] * layers if not smollm3 else [int((i + 1) % interval != 0) for i in range(layers)]
    uses_rope = config.get("no_rope_layers", uses_rope)
    if mistake == "no_rope_layers_inverted":
        uses_rope = [1 - use for use in uses_rope]
    if mistake == "no_rope_layers_ignored":
        uses_rope = [1] * layers
    cos, sin = rope(config, head, count, mistake)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        bias = w.get(name + ".bias", 0.0)
        if mistake == "no_bias" or (mistake == "no_o_bias" and "o_proj" in name):
            bias = 0.0
        return x @ w[name + ".weight"].T + bias

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scale = w[name + ".weight"] + (1 if mistake == "norm_plus_one" else 0)
        return rms(x, scale, eps)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(layers):
        at = f"model.layers.{i}."
        n = norm(x, at + "input_layernorm")
        q = linear(n, at + "self_attn.q_proj").reshape(count, heads, head)
        k = linear(n, at + "self_attn.k_proj").reshape(count, kv_heads, head)
        v = linear(n, at + "self_attn.v_proj").reshape(count, kv_heads, head)
        if config["model_type"] == "qwen3" and mistake != "no_qk_norm":
            q_norm, k_norm = w[at + "self_attn.q_norm.weight"], w[at + "self_attn.k_norm.weight"]
            q, k = rms(q, q_norm, eps), rms(k, k_norm, eps)
        if uses_rope[i] and mistake != "no_rope":
            q = rotate(q, cos, sin, mistake == "interleaved")
            k = rotate(k, cos, sin, mistake == "interleaved")
        if mistake == "kv_f16":
            k, v = k.astype(np.float16).astype(float), v.astype(np.float16).astype(float)
        if mistake == "kv_bf16":
            k, v = (round_bf16(t) for t in (k, v))
        tiled = mistake == "gqa_tiled"
        k, v = (np.tile(t, (1, group, 1)) if tiled else np.repeat(t, group, axis=1) for t in (k, v))
        scale = 1.0 if mistake == "unscaled" else head**-0.5
        if mistake == "scale_by_E_over_H":
            scale = (width // heads) ** -0.5
        scores = np.einsum("thd,shd->hts", q, k) * scale
        scores = np.where(np.tril(np.ones((count, count), dtype=bool)) | (mistake == "not_causal"), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hts,shd->thd", p, v).reshape(count, heads * head), at + "self_attn.o_proj")
        m = norm(x, at + "post_attention_layernorm")
        gate, up = linear(m, at + "mlp.gate_proj"), linear(m, at + "mlp.up_proj")
        if mistake == "gate_up_swapped":
            gate, up = up, gate
        x = x + linear(gate / (1 + np.exp(-gate)) * up, at + "mlp.down_proj")
    x = x if mistake == "no_final_norm" else norm(x, "model.norm")
    tied = config.get("tie_word_embeddings", "lm_head.weight" not in w)
    if mistake == "stray_head_used":
        tied = False
    return x @ (w["model.embed_tokens.weight"] if tied else w["lm_head.weight"]).T


def round_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32).astype(float)


EVERYWHERE = ["no_rope", "interleaved", "rope_off_by_one", "unscaled", "not_causal", "gate_up_swapped"]
EVERYWHERE += ["norm_plus_one", "no_final_norm", "eps_1e-3"]
# mistake: the cases that must show it
MISTAKES = {mistake: ["llama_tied", "llama_untied", "minicpm5", "mistral", "qwen3"] for mistake in EVERYWHERE}
MISTAKES |= {
    "gqa_tiled": ["llama_tied", "llama_untied", "llama_gqa_3", "llama_widths_72_100", "qwen2_tied", "qwen3"],
    "scale_by_E_over_H": ["llama_head_wide", "llama_head_narrow", "llama_head_odd", "qwen3_bias_head_wide"],
    "no_bias": ["llama_attention_bias", "llama_mlp_bias", "llama_all_bias", "qwen2_tied", "qwen3_bias_head_wide"],
    "no_o_bias": ["llama_attention_bias", "llama_all_bias", "smollm3_bias", "qwen3_bias_head_wide"],
    "no_qk_norm": ["qwen3", "qwen3_bias_head_wide"],
    "theta_1e4": ["minicpm5", "mistral", "qwen2_tied", "qwen3", "rope_default_5e5"],
    "no_rope_layers_inverted": ["smollm3_list", "smollm3_default_interval", "smollm3_interval_2", "smollm3_bias"],
    "no_rope_layers_ignored": ["smollm3_list", "smollm3_default_interval", "smollm3_interval_2", "smollm3_bias"],
    "rope_kind_ignored": ["rope_linear", "rope_dynamic_beyond", "rope_llama3", "rope_llama3_f32", "rope_yarn"]
    + ["rope_yarn_no_truncate", "rope_yarn_betas", "rope_yarn_one_band", "rope_longrope_short", "rope_longrope_long"],
    "attention_factor_ignored": ["rope_yarn", "rope_yarn_attention_factor", "rope_longrope_long"]
    + ["rope_longrope_attention_factor", "rope_longrope_factor_alone"],
    "no_mscale": ["rope_yarn_mscale"],
    "mscale_zero_counts": ["rope_yarn_mscale_zero"],
    "length_ignored": ["rope_dynamic_beyond", "rope_longrope_long", "rope_longrope_attention_factor"],
    "stray_head_used": ["llama_stray_tensors"],
}


def main() -> None:
    names = sorted(path.parent.name for path in tiny_llama.GOLDENS.glob("*/golden.safetensors"))
    names = [name for name in names if not name.startswith(("mlx_", "long_"))]
    loaded, hidden = {name: load(name) for name in names}, []

    def error(name: str, mistake: str) -> float:
        config, weights, golden = loaded[name]
        logits = forward(config, weights, golden["ids"], mistake)
        return float(np.abs(logits - golden["logits"]).max() / np.abs(golden["logits"]).max())

    worst = max((error(name, ""), name) for name in names)
    print(f"no mistake: at most {worst[0]:.1e} ({worst[1]}) over {len(names)} cases")
    if worst[0] > TOLERANCE_F32 / 10:
        hidden.append("no mistake")
    for rounding in ("kv_f16", "kv_bf16"):
        rounded = max((error(name, rounding), name) for name in names)
        print(f"{rounding}: at most {rounded[0]:.1e} ({rounded[1]})")
    for mistake, where in MISTAKES.items():
        found = {name: error(name, mistake) for name in where}
        least = min(found, key=found.get)
        print(f"{mistake}: least {found[least]:.1e} ({least})")
        if found[least] < TOLERANCE_DEFAULT:
            hidden.append(f"{mistake} in {least}")
    if hidden:
        raise SystemExit("these hide below the tolerance: " + ", ".join(hidden))


if __name__ == "__main__":
    main()
