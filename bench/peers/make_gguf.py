"""make_gguf.py MODEL_DIRECTORY q4_0|q4_1 OUT.gguf: an MLX llama or Qwen3.5 checkpoint (affine 4 and 8 bit, groups of 32
or more) as GGUF with the very same weights: 4 bit as Q4_0 or Q4_1, 8 bit as Q8_0. Refuses what is not exact. No tokenizer.
Value heads of Qwen3.5 stay in the checkpoint's order: where there are more of them than key heads, llama.cpp does the same
work on other pairs, and its text means nothing.

Needs numpy and gguf."""
import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

BLOCK = 32  # of Q4_0, Q4_1 and Q8_0
ATTENTION = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm"}
LLAMA = {**ATTENTION, "post_attention_layernorm": "ffn_norm"}
QWEN = {**ATTENTION, "post_attention_layernorm": "post_attention_norm", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.out_proj": "ssm_out",
        "linear_attn.norm": "ssm_norm", "linear_attn.conv1d": "ssm_conv1d"}
OUTER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
MTP = {"fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
       "norm": "nextn.shared_head_norm"}


class Checkpoint:
    def __init__(self, path):
        self.data = np.memmap(path, np.uint8, "r")
        size = struct.unpack("<Q", self.data[:8].tobytes())[0]
        self.header = json.loads(self.data[8:8 + size].tobytes())
        self.base = 8 + size

    def tensor(self, name):
        entry = self.header[name]
        begin, end = (self.base + at for at in entry["data_offsets"])
        raw = self.data[begin:end]
        if entry["dtype"] == "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
        kind = {"U32": np.uint32, "F16": np.float16, "F32": np.float32}[entry["dtype"]]
        return raw.view(kind).reshape(entry["shape"])

    def codes(self, name, bits):
        words = self.tensor(name + ".weight")
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        return ((words[..., None] >> shifts) & np.uint32(2 ** bits - 1)).astype(np.uint8).reshape(words.shape[0], -1)


def exact_f16(values, what):
    half = values.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), values.astype(np.float32)):
        raise SystemExit(f"{what} does not fit f16 exactly")
    return half


def blocks_of(checkpoint, name, bits, four_bit):
    """(bytes [rows, blocks, block size], GGUF type) of one quantized matrix."""
    codes = checkpoint.codes(name, bits)
    rows, inputs = codes.shape
    scales = exact_f16(checkpoint.tensor(name + ".scales"), name + ".scales")
    biases = checkpoint.tensor(name + ".biases").astype(np.float32)
    per_group = inputs // scales.shape[1] // BLOCK
    scales, biases = np.repeat(scales, per_group, 1), np.repeat(biases, per_group, 1)
    symmetric = np.array_equal(biases, -(2.0 ** (bits - 1)) * scales.astype(np.float32))
    codes = codes.reshape(rows, inputs // BLOCK, BLOCK)
    head = [scales[..., None].view(np.uint8)]
    if bits == 8:
        if not symmetric:
            raise SystemExit(f"{name}: 8 bit with biases other than -128 * scale is no Q8_0")
        return np.concatenate(head + [codes ^ 128], -1), gguf.GGMLQuantizationType.Q8_0  # q - 128 as int8
    if bits != 4:
        raise SystemExit(f"{name}: {bits} bit is neither Q4_0, Q4_1 nor Q8_0")
    if four_bit == "q4_0" and not symmetric:
        raise SystemExit(f"{name}: biases other than -8 * scale are no Q4_0")
    if four_bit == "q4_1":
        head.append(exact_f16(biases, name + ".biases")[..., None].view(np.uint8))
    nibbles = codes[..., :BLOCK // 2] | (codes[..., BLOCK // 2:] << 4)
    kind = gguf.GGMLQuantizationType.Q4_0 if four_bit == "q4_0" else gguf.GGMLQuantizationType.Q4_1
    return np.concatenate(head + [nibbles], -1), kind


def gguf_rotary_order(blocks, heads):
    """Rows of q and k per head from halves to pairs, as llama.cpp's RoPE of this architecture reads them."""
    rows = blocks.shape[0]
    return blocks.reshape(heads, 2, rows // heads // 2, *blocks.shape[1:]).swapaxes(1, 2).reshape(blocks.shape)


def target_of(module, layers, names):
    """The GGUF name of a module, without its suffix."""
    if module.startswith("mtp."):  # one block behind those of the trunk
        inner = module.removeprefix("mtp.")
        name = names[inner.removeprefix("layers.0.")] if inner.startswith("layers.0.") else MTP[inner]
        return f"blk.{layers}.{name}"
    module = module.removeprefix("language_model.").removeprefix("model.")
    if module in OUTER:
        return OUTER[module]
    layer, inner = module.removeprefix("layers.").split(".", 1)
    return f"blk.{layer}.{names[inner]}"


def describe(writer, config, heads, kv_heads, width):
    is_llama = config["model_type"] == "llama"
    rope = config if is_llama else config["rope_parameters"]
    writer.add_context_length(min(config["max_position_embeddings"], 16384))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if is_llama:
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_rope_dimension_count(width)
        return
    turned = int(width * rope["partial_rotary_factor"])
    writer.add_block_count(config["num_hidden_layers"] + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_rope_dimension_count(turned)
    writer.add_rope_dimension_sections([turned // 2, 0, 0, 0])  # text alone: all positions of a token are equal
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])


def add_plain(writer, checkpoint, name, target):
    """A tensor that is not quantized, as f32."""
    values = checkpoint.tensor(name).astype(np.float32)
    if name.endswith(".A_log"):
        writer.add_tensor(target("linear_attn.A_log", "ssm_a"), -np.exp(values))
    elif name.endswith(".dt_bias"):
        writer.add_tensor(target("linear_attn.dt_bias", "ssm_dt") + ".bias", values)
    else:
        writer.add_tensor(target() + ".weight", values.reshape(values.shape[0], -1) if values.ndim == 3 else values)


def main():
    directory, four_bit, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = json.loads((directory / "config.json").read_text())
    checkpoint = Checkpoint(directory / "model.safetensors")
    quantization = config["quantization"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim", config["hidden_size"] // heads)
    is_llama = config["model_type"] == "llama"
    names, layers = LLAMA if is_llama else QWEN, config["num_hidden_layers"]
    writer = gguf.GGUFWriter(out, "llama" if is_llama else "qwen35")
    describe(writer, config, heads, kv_heads, width)
    for name in sorted(checkpoint.header):
        module, _, suffix = name.rpartition(".")
        if name == "__metadata__" or suffix in ("scales", "biases"):
            continue

        def target(inner=None, renamed=None, name=name, module=module):
            if inner is None:
                return target_of(module, layers, names)
            return target_of(name, layers, {inner: renamed})

        if module + ".scales" not in checkpoint.header:
            add_plain(writer, checkpoint, name, target)
            continue
        bits = {**quantization, **quantization.get(module, {})}["bits"]
        blocks, kind = blocks_of(checkpoint, module, bits, four_bit)
        if is_llama and target().endswith(("attn_q", "attn_k")):
            blocks = gguf_rotary_order(blocks, heads if target().endswith("q") else kv_heads)
        writer.add_tensor(target() + ".weight", np.ascontiguousarray(blocks.reshape(blocks.shape[0], -1)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if len(sys.argv) != 4 or sys.argv[2] not in ("q4_0", "q4_1"):
    sys.exit(__doc__)
main()
