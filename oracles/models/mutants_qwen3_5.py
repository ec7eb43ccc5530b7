"""How far plausible mistakes move the logits and MTP rows of the tiny Qwen3.5 models: the reason to trust the goldens.

A second, independent forward pass in numpy float64 (step form; no code shared with transformers or mlx-lm) is compared
with the goldens: unchanged it must agree within a tenth of the float32 tolerance, and each mistake must exceed the
tolerance of the default precision (two small ones that of float32) in every case named beside it. Prints one line per mistake; fails when one hides.

Usage: mutants_qwen3_5.py
"""

import json

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

import tiny_qwen3_5

TOLERANCE_F32, TOLERANCE_DEFAULT = 1e-4, 2e-3


def load(name: str) -> tuple[dict, dict[str, np.ndarray], dict[str, np.ndarray]]:
    folder, weights = tiny_qwen3_5.GOLDENS / name, {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as f:
            for key in f.keys():
                if not key.startswith("model.visual."):
                    weights[key.replace("model.language_model.", "model.")] = f.get_tensor(key).double().numpy()
    config = json.loads((folder / "config.json").read_text())
    config = config | config.get("text_config", {})
    return config, weights, load_file(folder / "golden.safetensors")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


class Model:
    def __init__(self, config: dict, weights: dict[str, np.ndarray], mistake: str):
        self.c, self.w, self.mistake = config, weights, mistake
        self.eps = config["rms_norm_eps"]

    def norm(self, x: np.ndarray, name: str, eps: float | None = None) -> np.ndarray:
        scale = self.w[name + ".weight"] + (0 if self.mistake == "norms_without_1" else 1)
        return scale * x / np.sqrt((x * x).mean(-1, keepdims=True) + (self.eps if eps is None else eps))

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name + ".weight"].T

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """x [T, heads, D]; the first R dims turn, halves paired."""
        rope, width = self.c["rope_parameters"], x.shape[-1]
        count = int(width * rope["partial_rotary_factor"])
        if self.mistake == "whole_head_turns":
            count = width
        half = count // 2
        angle = np.arange(len(x))[:, None] * rope["rope_theta"] ** (-2.0 * np.arange(half) / count)
        first, second = np.arange(half), np.arange(half) + half
        if self.mistake == "interleaved_pairs":
            first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
        cos, sin, out = np.cos(angle)[:, None], np.sin(angle)[:, None], x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def attention(self, n: np.ndarray, at: str) -> np.ndarray:
        c, count = self.c, len(n)
        heads, kv_heads, width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        both = self.linear(n, at + "q_proj")
        if self.mistake == "gate_as_half_of_the_vector":
            q, gate = np.split(both, 2, axis=-1)
        else:
            q, gate = np.split(both.reshape(count, heads, 2 * width), 2, axis=-1)
        q, gate = q.reshape(count, heads, width), gate.reshape(count, -1)
        k = self.linear(n, at + "k_proj").reshape(count, kv_heads, width)
        v = self.linear(n, at + "v_proj").reshape(count, kv_heads, width)
        if self.mistake == "norms_after_rope":
            q, k = self.norm(self.rotate(q), at + "q_norm"), self.norm(self.rotate(k), at + "k_norm")
        else:
            q, k = self.rotate(self.norm(q, at + "q_norm")), self.rotate(self.norm(k, at + "k_norm"))
        group = heads // kv_heads
        if self.mistake == "kv_heads_tiled":
            k, v = np.tile(k, (1, group, 1)), np.tile(v, (1, group, 1))
        else:
            k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) * width**-0.5
        scores = np.where(np.tril(np.ones((count, count), dtype=bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        o = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v).reshape(count, -1)
        o = o * (silu(gate) if self.mistake == "silu_attention_gate" else sigmoid(gate))
        return self.linear(o, at + "o_proj")

    def inputs(self, n: np.ndarray, at: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """qkv, z, b, a."""
        if at + "in_proj_qkvz.weight" not in self.w:
            return tuple(self.linear(n, at + "in_proj_" + part) for part in ("qkv", "z", "b", "a"))
        c = self.c
        heads, r = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"]
        key, values = c["linear_key_head_dim"], r * c["linear_value_head_dim"]
        qkvz = self.linear(n, at + "in_proj_qkvz").reshape(len(n), heads, 2 * key + 2 * values)
        ba = self.linear(n, at + "in_proj_ba").reshape(len(n), heads, 2 * r)
        q, k, v, z = np.split(qkvz, [key, 2 * key, 2 * key + values], axis=-1)
        flat = [part.reshape(len(n), -1) for part in (q, k, v, z, ba[..., :r], ba[..., r:])]
        return np.concatenate(flat[:3], axis=-1), *flat[3:]

    def delta_net(self, n: np.ndarray, at: str) -> np.ndarray:
        c, count, mistake = self.c, len(n), self.mistake
        key_heads, value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        key, value = c["linear_key_head_dim"], c["linear_value_head_dim"]
        qkv, z, b, a = self.inputs(n, at)
        taps = self.w[at + "conv1d.weight"].reshape(qkv.shape[1], -1)
        if mistake == "taps_reversed":
            taps = taps[:, ::-1]
        width = taps.shape[1]
        padded = np.concatenate([np.zeros((width - 1, qkv.shape[1])), qkv])
        u = sum(taps[:, j] * padded[j : j + count] for j in range(width))
        u = u if mistake == "no_silu_after_conv" else silu(u)
        keys = key_heads * key
        q, k, v = np.split(u, [keys, 2 * keys], axis=-1)
        q, k = q.reshape(count, key_heads, key), k.reshape(count, key_heads, key)
        eps = 0.0 if mistake == "l2_without_eps" else 1e-6 * (key if mistake == "l2_eps_of_old_mlx" else 1)
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + eps) for x in (q, k))
        if mistake != "q_unscaled":
            q = q * key**-0.5
        repeat = (lambda x: np.tile(x, (1, value_heads // key_heads, 1))) if mistake == "key_heads_tiled" else (
            lambda x: np.repeat(x, value_heads // key_heads, axis=1)
        )
        q, k, v = repeat(q), repeat(k), v.reshape(count, value_heads, value)
        beta = sigmoid(b)
        x = a + (0 if mistake == "no_dt_bias" else self.w[at + "dt_bias"])
        g = np.exp(-np.exp(self.w[at + "A_log"]) * np.logaddexp(0, x))
        state, out = np.zeros((value_heads, key, value)), np.empty((count, value_heads, value))
        for t in range(count):
            before = np.einsum("hkv,hk->hv", state, k[t])
            state = g[t][:, None, None] * state
            read = before if mistake == "read_before_decay" else np.einsum("hkv,hk->hv", state, k[t])
            if mistake == "output_before_write":
                out[t] = np.einsum("hkv,hk->hv", state, q[t])
            state = state + np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - read))
            if mistake != "output_before_write":
                out[t] = np.einsum("hkv,hk->hv", state, q[t])
        z = z.reshape(out.shape)
        if mistake == "gate_before_norm":
            out = out * silu(z)
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + self.eps)
        out = out * (self.w[at + "norm.weight"] + (1 if mistake == "gated_norm_plus_1" else 0))
        if mistake != "gate_before_norm":
            out = out * silu(z)
        return self.linear(out.reshape(count, -1), at + "out_proj")

    def block(self, x: np.ndarray, at: str) -> np.ndarray:
        n = self.norm(x, at + "input_layernorm")
        if at + "self_attn.q_proj.weight" in self.w:
            x = x + self.attention(n, at + "self_attn.")
        else:
            x = x + self.delta_net(n, at + "linear_attn.")
        m = self.norm(x, at + "post_attention_layernorm")
        return x + self.linear(silu(self.linear(m, at + "mlp.gate_proj")) * self.linear(m, at + "mlp.up_proj"), at + "mlp.down_proj")

    def head(self, x: np.ndarray) -> np.ndarray:
        return x @ self.w["model.embed_tokens.weight" if self.c["tie_word_embeddings"] else "lm_head.weight"].T

    def run(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        embed = self.w["model.embed_tokens.weight"]
        x = embed[ids]
        for i in range(self.c["num_hidden_layers"]):
            x = self.block(x, f"model.layers.{i}.")
        out = {"hidden_pre_norm": x, "logits": self.head(self.norm(x, "model.norm"))}
        if "mtp.fc.weight" not in self.w:
            return out
        pre = (self.c.get("mtp_hidden_tap", "post_norm") == "pre_norm") != (self.mistake == "other_tap")
        h = (x if pre else self.norm(x, "model.norm"))[:-1]
        halves = [self.norm(embed[ids[1:]], "mtp.pre_fc_norm_embedding"), self.norm(h, "mtp.pre_fc_norm_hidden")]
        u = self.linear(np.concatenate(halves[::-1] if self.mistake == "hidden_half_first" else halves, axis=-1), "mtp.fc")
        u = self.block(u, "mtp.layers.0.")
        m = u if self.mistake == "no_mtp_norm" else self.norm(u, "mtp.norm")
        return out | {"mtp1_hidden": m, "mtp1_logits": self.head(m)}


TRUNKS = ["hv1", "hv2_wrapped", "hv4_tied", "uneven", "extremes", "fused", "mtp_pre_norm", "mtp_post_norm_wrapped"]
GROUPED = [name for name in TRUNKS if name != "hv1"]
HEADS = ["mtp_pre_norm", "mtp_post_norm_wrapped"]
EVERYWHERE = ["norms_without_1", "gated_norm_plus_1", "gate_as_half_of_the_vector", "silu_attention_gate"]
EVERYWHERE += ["kv_heads_tiled", "no_dt_bias", "no_silu_after_conv", "taps_reversed", "q_unscaled"]
EVERYWHERE += ["gate_before_norm", "output_before_write", "read_before_decay"]
# mistake: (the tensor that must show it, in these cases)
MISTAKES = {mistake: ("logits", TRUNKS) for mistake in EVERYWHERE}
MISTAKES |= {"key_heads_tiled": ("logits", GROUPED)}
MISTAKES |= {mistake: ("logits", TRUNKS) for mistake in ("whole_head_turns", "interleaved_pairs")}
MISTAKES |= {"l2_without_eps": ("logits", ["extremes"])}
MISTAKES |= {mistake: ("mtp1_hidden", HEADS) for mistake in ("other_tap", "hidden_half_first", "no_mtp_norm")}

# Small by nature: seen by the float32 tolerance alone.
FINE = {"norms_after_rope": ("logits", TRUNKS), "l2_eps_of_old_mlx": ("hidden_pre_norm", ["hv1"])}


def main() -> None:
    np.seterr(invalid="ignore")  # mistakes make NaN
    loaded, hidden = {name: load(name) for name in TRUNKS}, []

    def error(name: str, mistake: str, tensor: str) -> float:
        config, weights, golden = loaded[name]
        got = Model(config, weights, mistake).run(golden["ids"])[tensor]
        difference = np.abs(got - golden[tensor])
        return float(np.nan_to_num(difference, nan=np.inf).max() / np.abs(golden[tensor]).max())

    for tensor, names in (("logits", TRUNKS), ("hidden_pre_norm", TRUNKS), ("mtp1_hidden", HEADS), ("mtp1_logits", HEADS)):
        worst = max((error(name, "", tensor), name) for name in names)
        print(f"no mistake, {tensor}: at most {worst[0]:.1e} ({worst[1]})")
        if worst[0] > TOLERANCE_F32 / 10:
            hidden.append(f"no mistake in {tensor}")
    for mistake, (tensor, names) in (MISTAKES | FINE).items():
        found = {name: error(name, mistake, tensor) for name in names}
        least = min(found, key=found.get)
        print(f"{mistake}: least {found[least]:.1e} ({least})")
        if found[least] < (TOLERANCE_F32 if mistake in FINE else TOLERANCE_DEFAULT):
            hidden.append(f"{mistake} in {least}")
    if hidden:
        raise SystemExit("these hide below the tolerance: " + ", ".join(hidden))


if __name__ == "__main__":
    main()
