"""Makes goldens/qwen3_5/<case>/ for the tiny random Qwen3.5 models of qwen3_5_cases.py.

Per case: config.json, model.safetensors or shards with an index, and golden.safetensors:
  ids               [T] i32
  logits            [T, V] f32
  hidden_pre_norm   [T, E] f32    the last layer's output before the final norm
  mtp1_hidden       [T-1, E] f32  cases with a head: row p = (token p+1, hidden p), causal, position p
  mtp1_logits       [T-1, V] f32
T is 70, so that attention crosses a block of 64 keys. Reference: transformers in float32 with eager attention on the
values as stored; the head is put together from its decoder layer, its norm and one matrix, because transformers has no
MTP. Cases of mlx are written and run by mlx-lm (float32 activations) and compared with transformers on the same values:
more than 1e-5 of the largest logit fails. mutants_qwen3_5.py is a second, independent program that checks all of them.

Weights are drawn as in tiny_llama.py, but so that every part of the delta rule matters: with N(0, 0.02) everywhere the
state is lost beside the norms' epsilon. in_proj N(0, 0.1), conv1d N(0, 0.3), dt_bias N(-3, 1), A_log = ln U(0.01, 16).
Zero-centred norms N(0, 0.1), linear_attn.norm 1 + N(0, 0.1).

Usage: tiny_qwen3_5.py [CASE ...]
"""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5 as mlx_qwen3_5
from mlx_lm.utils import quantize_model
from safetensors.torch import save_file
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf
from transformers.utils import logging

import qwen3_5_cases as cases
import tiny_llama
import tiny_mlx

GOLDENS = tiny_llama.GOLDENS.parent / "qwen3_5"
TOKENS = 70
STORE = {"f32": torch.float32, "bf16": torch.bfloat16}


def block_shapes(config: dict, at: str, kind: str) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer."""
    width, head, ffn = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out = {at + "input_layernorm.weight": (width,), at + "post_attention_layernorm.weight": (width,)}
    out |= {at + "mlp.gate_proj.weight": (ffn, width), at + "mlp.up_proj.weight": (ffn, width)}
    out |= {at + "mlp.down_proj.weight": (width, ffn)}
    if kind == cases.FULL:
        at += "self_attn."
        out |= {at + "q_proj.weight": (2 * heads * head, width), at + "k_proj.weight": (kv_heads * head, width)}
        out |= {at + "v_proj.weight": (kv_heads * head, width), at + "o_proj.weight": (width, heads * head)}
        return out | {at + "q_norm.weight": (head,), at + "k_norm.weight": (head,)}
    at += "linear_attn."
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    values = value_heads * config["linear_value_head_dim"]
    channels = 2 * key_heads * config["linear_key_head_dim"] + values
    out |= {at + "in_proj_qkv.weight": (channels, width), at + "in_proj_z.weight": (values, width)}
    out |= {at + "in_proj_b.weight": (value_heads, width), at + "in_proj_a.weight": (value_heads, width)}
    out |= {at + "conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"])}
    out |= {at + "A_log": (value_heads,), at + "dt_bias": (value_heads,)}
    return out | {at + "norm.weight": (config["linear_value_head_dim"],), at + "out_proj.weight": (width, values)}


def layer_types(config: dict) -> list[str]:
    interval = config.get("full_attention_interval", 4)
    default = [cases.FULL if (i + 1) % interval == 0 else cases.LINEAR for i in range(config["num_hidden_layers"])]
    return config.get("layer_types", default)


def shapes(config: dict, mtp: bool) -> dict[str, tuple[int, ...]]:
    width, vocab = config["hidden_size"], config["vocab_size"]
    out = {"model.embed_tokens.weight": (vocab, width)}
    for i, kind in enumerate(layer_types(config)):
        out |= block_shapes(config, f"model.layers.{i}.", kind)
    out["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (vocab, width)
    if mtp:
        out |= block_shapes(config, "mtp.layers.0.", cases.FULL)
        out |= {"mtp.fc.weight": (width, 2 * width), "mtp.norm.weight": (width,)}
        out |= {"mtp.pre_fc_norm_embedding.weight": (width,), "mtp.pre_fc_norm_hidden.weight": (width,)}
    return out


def draw(name: str, key: str, shape: tuple[int, ...]) -> np.ndarray:
    random = tiny_llama.generator("qwen3_5", name, key)
    if key.endswith("A_log"):
        return np.log(random.uniform(0.01, 16, shape))
    values = random.standard_normal(shape)
    if key.endswith("dt_bias"):
        return values - 3
    if key.endswith("linear_attn.norm.weight"):
        return 1 + 0.1 * values
    if "norm" in key:
        return 0.1 * values
    if "conv1d" in key:
        return 0.3 * values
    if "in_proj" in key or "mtp.fc" in key:
        return 0.1 * values
    return (0.2 if "q_proj" in key or "k_proj" in key else 0.02) * values


def weights(case: cases.Case, config: dict) -> dict[str, torch.Tensor]:
    """Canonical names, values as stored."""
    out = {}
    for key, shape in shapes(config, case.mtp).items():
        values = draw(case.name, key, shape)
        if case.extremes:
            if key.endswith("A_log"):
                values[0] = 8.0  # exp(8)*softplus: g underflows to 0
            if key.endswith("dt_bias"):
                values[0], values[1] = 4.0, -90.0  # and g = 1
            if key.endswith("in_proj_b.weight"):
                values[2], values[3] = 400 * values[2], -400 * np.abs(values[3])  # beta at 0 and at 1
            if key.endswith("in_proj_qkv.weight"):
                values[config["linear_num_key_heads"] * config["linear_key_head_dim"] :][
                    : config["linear_key_head_dim"]
                ] = 0  # the first key head
        out[key] = torch.from_numpy(values.astype(np.float32)).to(STORE[case.store])
    return out


def text_of(config: dict) -> Qwen3_5TextConfig:
    keys = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "torch_dtype")}
    return Qwen3_5TextConfig(**(keys | {"layer_types": layer_types(config)}), attn_implementation="eager")


class Trunk:
    """transformers' model with given float values; runs give logits [T, V] and hidden_pre_norm [T, E]."""

    def __init__(self, config: dict, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32):
        self.config, self.dtype, self.tensors = text_of(config), dtype, tensors
        self.model = hf.Qwen3_5ForCausalLM(self.config).to(dtype).eval()
        state = {key: value.to(dtype) for key, value in tensors.items() if not key.startswith("mtp.")}
        if config["tie_word_embeddings"]:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True)
        self.model.model.norm.register_forward_pre_hook(lambda _, inputs: setattr(self, "hidden", inputs[0][0]))

    def run(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits, self.hidden


class Head:
    """The MTP module of models.md section 4.1 over a Trunk's embedding, head and rotary angles."""

    def __init__(self, trunk: Trunk):
        self.trunk, config = trunk, trunk.config
        self.tap = getattr(config, "mtp_hidden_tap", "post_norm")
        values = {key[4:]: value.to(trunk.dtype) for key, value in trunk.tensors.items() if key.startswith("mtp.")}
        one_layer = Qwen3_5TextConfig(**(config.to_dict() | {"layer_types": [cases.FULL], "num_hidden_layers": 1}))
        one_layer._attn_implementation = "eager"
        self.block = hf.Qwen3_5DecoderLayer(one_layer, 0).to(trunk.dtype).eval()
        block = {key[len("layers.0.") :]: value for key, value in values.items() if key.startswith("layers.0.")}
        self.block.load_state_dict(block, strict=True)
        self.norms = {}
        for key in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.norms[key] = hf.Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps).to(trunk.dtype)
            self.norms[key].load_state_dict({"weight": values[key + ".weight"]})
        self.fc = values["fc.weight"]

    def tapped(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return hidden if self.tap == "pre_norm" else self.trunk.model.model.norm(hidden)

    def rows(self, tokens: list[int], hiddens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows p = (tokens[p], hiddens[p]) at position p, each attending to the rows up to itself: (m, head(m))."""
        model = self.trunk.model.model
        with torch.inference_mode():
            embedding = self.norms["pre_fc_norm_embedding"](model.embed_tokens(torch.tensor([tokens])))
            x = torch.cat([embedding, self.norms["pre_fc_norm_hidden"](hiddens[None])], dim=-1) @ self.fc.T
            count = len(tokens)
            positions = torch.arange(count)[None]
            angles = model.rotary_emb(x, positions[None].expand(3, 1, -1))
            mask = torch.full((count, count), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
            x = self.block(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
            x = self.norms["norm"](x)
            return x[0], self.trunk.model.lm_head(x)[0]


def fuse(config: dict, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """in_proj_{qkv,z} as in_proj_qkvz and in_proj_{b,a} as in_proj_ba, rows by key head."""
    heads, per = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith("in_proj_qkv.weight")]:
        at = name.removesuffix("qkv.weight")
        qkv, z, b, a = (out.pop(f"{at}{part}.weight") for part in ("qkv", "z", "b", "a"))
        q, k, v = qkv.split([heads * key, heads * key, heads * per * value])
        parts = [q.reshape(heads, key, -1), k.reshape(heads, key, -1), v.reshape(heads, per * value, -1)]
        qkvz = torch.cat(parts + [z.reshape(heads, per * value, -1)], dim=1)
        ba = torch.cat([b.reshape(heads, per, -1), a.reshape(heads, per, -1)], dim=1)
        out[at + "qkvz.weight"], out[at + "ba.weight"] = (t.flatten(0, 1).contiguous() for t in (qkvz, ba))
    return out


def on_disk(case: cases.Case, config: dict, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if case.fused:
        tensors = fuse(config, tensors)
    if not case.wrapped:
        return tensors
    out = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
    out["model.visual.patch_embed.proj.weight"] = torch.ones((4, 3), dtype=STORE[case.store])
    return out


def outer_config(case: cases.Case, config: dict) -> dict:
    if not case.wrapped:
        return config
    outside = ("architectures",) if case.mlx else ("architectures", "tie_word_embeddings")  # mlx-lm looks inside only
    inner = {key: value for key, value in config.items() if key not in outside}
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": inner}
    return outer | {"tie_word_embeddings": config["tie_word_embeddings"], "vision_config": {"depth": 1}}


def run_mlx(case: cases.Case, config: dict, tensors: dict[str, torch.Tensor], folder: pathlib.Path, ids: list[int]):
    """Writes the case as mlx-lm does; (logits, hidden, the float values of every tensor as an hf-layout trunk)."""
    outer = outer_config(case, config)
    model = mlx_qwen3_5.Model(mlx_qwen3_5.ModelArgs.from_dict(json.loads(json.dumps(outer))))
    raw = {key: mx.array(value.float().numpy()) for key, value in tensors.items()}
    model.load_weights(list(model.sanitize(raw).items()), strict=True)
    # A_log stays float32, as mlx-lm's own conversion keeps it.
    cast = [
        (key, value if key.endswith("A_log") else value.astype(tiny_mlx.TYPES[case.store]))
        for key, value in tree_flatten(model.parameters())
    ]
    model.load_weights(cast)
    if case.bits:
        with contextlib.redirect_stdout(io.StringIO()):
            model, outer = quantize_model(model, outer, 32, case.bits, "affine")
    stored = dict(sorted(tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), stored, metadata={"format": "mlx"})
    tiny_llama.write_json(folder / "config.json", outer)

    values = {}
    for path, module in tree_flatten(model.leaf_modules(), is_leaf=mlx_is_module):
        if hasattr(module, "scales"):
            values[path + ".weight"] = tiny_mlx.dequantized(module)
        else:
            values |= {f"{path}.{key}": tiny_mlx.to_numpy(value) for key, value in module.parameters().items()}
    for key, value in stored.items():
        if key.endswith(("A_log", "dt_bias")):
            values[key] = tiny_mlx.to_numpy(value)
    back = {}
    for key, value in values.items():
        key = key.removeprefix("language_model.")
        if key.endswith("conv1d.weight"):
            value = np.moveaxis(value, 2, 1)
        elif "norm" in key and not key.endswith("linear_attn.norm.weight"):
            value = value.astype(np.float64) - 1
        back[key] = torch.from_numpy(np.ascontiguousarray(value))
    model.set_dtype(mx.float32)
    seen, norm = [], model.language_model.model.norm
    model.language_model.model.norm = lambda x: (seen.append(x), norm(x))[1]
    logits = model(mx.array([ids]))[0]
    return tiny_mlx.to_numpy(logits), tiny_mlx.to_numpy(seen[0][0]), back


def mlx_is_module(value: object) -> bool:
    return isinstance(value, tiny_mlx.nn.Module)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def make(case: cases.Case) -> int:
    folder = GOLDENS / case.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    config = cases.text_config(**case.changes)
    tensors = weights(case, config)
    ids = tiny_llama.token_ids("qwen3_5/" + case.name, TOKENS, config["vocab_size"])
    golden, note = {"ids": torch.tensor(ids, dtype=torch.int32)}, ""
    if case.mlx:
        logits, hidden, back = run_mlx(case, config, tensors, folder, ids)
        other, _ = Trunk(config, back, torch.float64).run(ids)
        error = distance(other.numpy(), logits)
        if error > 1e-5:
            raise SystemExit(f"{case.name}: mlx-lm and transformers differ by {error:.1e} of the largest logit")
        note = f", mlx-lm against transformers {error:.1e}"
        golden |= {"logits": torch.from_numpy(logits), "hidden_pre_norm": torch.from_numpy(hidden)}
    else:
        tiny_llama.write_model(folder, on_disk(case, config, tensors), case.shards)
        tiny_llama.write_json(folder / "config.json", outer_config(case, config))
        trunk = Trunk(config, tensors)
        logits, hidden = trunk.run(ids)
        golden |= {"logits": logits, "hidden_pre_norm": hidden}
        if case.mtp:
            head = Head(trunk)
            m, mtp_logits = head.rows(ids[1:], head.tapped(hidden)[:-1])
            golden |= {"mtp1_hidden": m, "mtp1_logits": mtp_logits}
    save_file({key: value.clone().contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{case.name}: {size / 1e3:.0f} kB, largest logit {float(golden['logits'].abs().max()):.3f}{note}")
    return size


def main() -> None:
    mx.set_default_device(mx.cpu)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    wanted = sys.argv[1:]
    total = sum(make(case) for case in cases.all_cases() if not wanted or case.name in wanted)
    print(f"total {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
