"""make_gguf.py MODEL_DIRECTORY q4_0|q4_1 OUT.gguf: an MLX llama checkpoint (affine 4 and 8 bit, groups of 32 or more)
as GGUF with the very same weights: 4 bit as Q4_0 or Q4_1, 8 bit as Q8_0. Refuses what is not exact. No tokenizer.

Needs numpy and gguf."""
import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

BLOCK = 32  # of Q4_0, Q4_1 and Q8_0
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


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


def main():
    directory, four_bit, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = json.loads((directory / "config.json").read_text())
    checkpoint = Checkpoint(directory / "model.safetensors")
    quantization = config["quantization"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim", config["hidden_size"] // heads)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(min(config["max_position_embeddings"], 16384))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    modules = sorted({name.rsplit(".", 1)[0] for name in checkpoint.header if name.endswith(".weight")})
    for module in modules:
        if module in OUTER:
            target = OUTER[module]
        else:
            layer, inner = module.removeprefix("model.layers.").split(".", 1)
            target = f"blk.{layer}.{NAMES[inner]}"
        if module + ".scales" not in checkpoint.header:
            writer.add_tensor(target + ".weight", checkpoint.tensor(module + ".weight").astype(np.float32))
            continue
        bits = {**quantization, **quantization.get(module, {})}["bits"]
        blocks, kind = blocks_of(checkpoint, module, bits, four_bit)
        if target.endswith(("attn_q", "attn_k")):
            blocks = gguf_rotary_order(blocks, heads if target.endswith("q") else kv_heads)
        writer.add_tensor(target + ".weight", np.ascontiguousarray(blocks.reshape(blocks.shape[0], -1)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if len(sys.argv) != 4 or sys.argv[2] not in ("q4_0", "q4_1"):
    sys.exit(__doc__)
main()
