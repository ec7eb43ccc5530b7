"""make_model.py TARGET [SHAPE]: an MLX checkpoint with random weights (4-bit groups of 64, 8-bit embedding and head), for
measuring. SHAPE: minicpm5-1b, or with an MTP head qwen3.5-0.8b, qwen3.5-4b. Standard library only; the same seed gives the
same bytes.

Scales are f16 and every bias is -2^(bits-1) * scale, both exact, so that bench/peers can write the very same weights as
GGUF Q4_0, Q4_1 and Q8_0. A weight is about N(0, 0.02): with inputs of rms 1 the activations stay near 1 through all layers.
"""
import json
import math
import random
import struct
import sys
from pathlib import Path

GROUP = 64
WEIGHT_SPREAD = 0.02
SEED = 5
# Scales repeat after this many: enough to be no pattern to a cache, few enough to draw in an instant.
DISTINCT_SCALES = 1 << 16


def pieces(size, most=1 << 26):
    """Sizes of the parts of `size` bytes: a call draws less than 256 MiB, and the bytes are those of one call."""
    while size > 0:
        yield min(size, most)
        size -= most


class Llama:
    """MiniCPM5-1B: the llama family, untied."""
    width, layers, heads, kv_heads, head_width, ffn, vocab = 1536, 24, 16, 2, 128, 4608, 130560
    metadata = {}

    def config(self):
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_width, "intermediate_size": self.ffn,
            "vocab_size": self.vocab, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
            "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float16",
            "bos_token_id": 0, "eos_token_id": 1,
            "quantization": {"group_size": GROUP, "bits": 4, "model.embed_tokens": {"group_size": GROUP, "bits": 8},
                             "lm_head": {"group_size": GROUP, "bits": 8}},
        }

    def linears(self):
        """(name, output rows, inputs, bits) of every quantized matrix."""
        yield "model.embed_tokens", self.vocab, self.width, 8
        yield "lm_head", self.vocab, self.width, 8
        for layer in range(self.layers):
            attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
            yield attention + "q_proj", self.heads * self.head_width, self.width, 4
            yield attention + "k_proj", self.kv_heads * self.head_width, self.width, 4
            yield attention + "v_proj", self.kv_heads * self.head_width, self.width, 4
            yield attention + "o_proj", self.width, self.heads * self.head_width, 4
            yield mlp + "gate_proj", self.ffn, self.width, 4
            yield mlp + "up_proj", self.ffn, self.width, 4
            yield mlp + "down_proj", self.width, self.ffn, 4

    def plain(self, draw):
        """(name, dtype, shape, values) of every tensor that is not quantized."""
        yield ones("model.norm.weight", self.width)
        for layer in range(self.layers):
            yield ones(f"model.layers.{layer}.input_layernorm.weight", self.width)
            yield ones(f"model.layers.{layer}.post_attention_layernorm.weight", self.width)


class Qwen:
    """Qwen3.5, a hybrid with an MTP head; dimensions from the published config.json files. The head's tensors are in the
    trunk, under the names and norms of `outrider convert`."""
    kernel, head_width, linear_width, vocab = 4, 256, 128, 248320
    metadata = {"format": "mlx", "outrider.layout": "mlx", "outrider.norms": "one_centred", "outrider.l2_eps": "hf",
                "outrider.mtp_norms": "one_centred", "outrider.mtp_hidden_tap": "post_norm"}

    def __init__(self, width, layers, heads, kv_heads, ffn, key_heads, value_heads):
        self.width, self.layers, self.heads, self.kv_heads, self.ffn = width, layers, heads, kv_heads, ffn
        self.key_heads, self.value_heads = key_heads, value_heads
        self.channels = (2 * key_heads + value_heads) * self.linear_width

    def is_full(self, layer):
        return layer % 4 == 3

    def config(self):
        kinds = ["full_attention" if self.is_full(layer) else "linear_attention" for layer in range(self.layers)]
        return {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_act": "silu",
            "hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_width, "intermediate_size": self.ffn,
            "vocab_size": self.vocab, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
            "attention_bias": False, "tie_word_embeddings": True, "torch_dtype": "float16", "eos_token_id": 0,
            "full_attention_interval": 4, "layer_types": kinds, "linear_conv_kernel_dim": self.kernel,
            "linear_key_head_dim": self.linear_width, "linear_value_head_dim": self.linear_width,
            "linear_num_key_heads": self.key_heads, "linear_num_value_heads": self.value_heads,
            "mtp_num_hidden_layers": 1, "mtp_hidden_tap": "post_norm",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
            "quantization": {"group_size": GROUP, "bits": 4,
                             "language_model.model.embed_tokens": {"group_size": GROUP, "bits": 8}},
        }

    def attention(self, at):
        yield at + "q_proj", 2 * self.heads * self.head_width, self.width, 4
        yield at + "k_proj", self.kv_heads * self.head_width, self.width, 4
        yield at + "v_proj", self.kv_heads * self.head_width, self.width, 4
        yield at + "o_proj", self.width, self.heads * self.head_width, 4

    def mlp(self, at):
        yield at + "gate_proj", self.ffn, self.width, 4
        yield at + "up_proj", self.ffn, self.width, 4
        yield at + "down_proj", self.width, self.ffn, 4

    def linears(self):
        yield "language_model.model.embed_tokens", self.vocab, self.width, 8
        for layer in range(self.layers):
            block = f"language_model.model.layers.{layer}."
            if self.is_full(layer):
                yield from self.attention(block + "self_attn.")
            else:
                values = self.value_heads * self.linear_width
                yield block + "linear_attn.in_proj_qkv", self.channels, self.width, 4
                yield block + "linear_attn.in_proj_z", values, self.width, 4
                yield block + "linear_attn.in_proj_b", self.value_heads, self.width, 4
                yield block + "linear_attn.in_proj_a", self.value_heads, self.width, 4
                yield block + "linear_attn.out_proj", self.width, values, 4
            yield from self.mlp(block + "mlp.")
        yield "mtp.fc", self.width, 2 * self.width, 4
        yield from self.attention("mtp.layers.0.self_attn.")
        yield from self.mlp("mtp.layers.0.mlp.")

    def norms_of_block(self, block, is_full):
        yield ones(block + "input_layernorm.weight", self.width)
        yield ones(block + "post_attention_layernorm.weight", self.width)
        if is_full:
            yield ones(block + "self_attn.q_norm.weight", self.head_width)
            yield ones(block + "self_attn.k_norm.weight", self.head_width)

    def plain(self, draw):
        yield ones("language_model.model.norm.weight", self.width)
        for layer in range(self.layers):
            block = f"language_model.model.layers.{layer}."
            yield from self.norms_of_block(block, self.is_full(layer))
            if self.is_full(layer):
                continue
            taps = [draw.gauss(0, 0.5) for _ in range(self.channels * self.kernel)]
            yield block + "linear_attn.conv1d.weight", "F16", [self.channels, self.kernel, 1], taps
            decays = [math.log(draw.uniform(0.01, 16)) for _ in range(self.value_heads)]
            yield block + "linear_attn.A_log", "F32", [self.value_heads], decays
            yield block + "linear_attn.dt_bias", "F32", [self.value_heads], [0.0] * self.value_heads
            yield ones(block + "linear_attn.norm.weight", self.linear_width)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            yield ones(f"mtp.{name}.weight", self.width)
        yield from self.norms_of_block("mtp.layers.0.", True)


SHAPES = {
    "minicpm5-1b": Llama(),
    "qwen3.5-0.8b": Qwen(width=1024, layers=24, heads=8, kv_heads=2, ffn=3584, key_heads=16, value_heads=16),
    "qwen3.5-4b": Qwen(width=2560, layers=32, heads=16, kv_heads=4, ffn=9216, key_heads=16, value_heads=32),
}


def ones(name, width):
    return name, "F16", [width], [1.0] * width


def f16_scales(draw, bits):
    """DISTINCT_SCALES f16 scales around the one that gives WEIGHT_SPREAD, and the biases that belong to them."""
    code_spread = ((4 ** bits - 1) / 12) ** 0.5  # of uniform codes 0 .. 2^bits - 1
    middle = WEIGHT_SPREAD / code_spread
    form = f"<{DISTINCT_SCALES}e"
    scales = struct.pack(form, *(middle * draw.uniform(0.75, 1.25) for _ in range(DISTINCT_SCALES)))
    biases = struct.pack(form, *(-(2 ** (bits - 1)) * scale for scale in struct.unpack(form, scales)))
    return scales, biases


def repeated(block, size):
    return (block * (size // len(block) + 1))[:size]


def main(target, shape):
    part = target.with_name(target.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    draw = random.Random(SEED)
    scales = {bits: f16_scales(draw, bits) for bits in (4, 8)}
    plain = list(shape.plain(draw))
    header, at = {}, 0
    if shape.metadata:
        header["__metadata__"] = shape.metadata

    def place(name, dtype, dims, size):
        nonlocal at
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + size]}
        at += size

    for name, rows, inputs, bits in shape.linears():
        place(name + ".weight", "U32", [rows, inputs * bits // 32], rows * inputs * bits // 8)
        place(name + ".scales", "F16", [rows, inputs // GROUP], rows * inputs // GROUP * 2)
        place(name + ".biases", "F16", [rows, inputs // GROUP], rows * inputs // GROUP * 2)
    for name, dtype, dims, values in plain:
        place(name, dtype, dims, len(values) * (2 if dtype == "F16" else 4))

    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(part / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, rows, inputs, bits in shape.linears():
            for size in pieces(rows * inputs * bits // 8):
                file.write(draw.randbytes(size))
            for block in scales[bits]:
                file.write(repeated(block, rows * inputs // GROUP * 2))
        for _, dtype, _, values in plain:
            file.write(struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values))
    (part / "config.json").write_text(json.dumps(shape.config(), indent=1) + "\n")
    part.rename(target)


if __name__ == "__main__":
    name = sys.argv[2] if len(sys.argv) == 3 else "minicpm5-1b"
    if len(sys.argv) not in (2, 3) or name not in SHAPES:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), SHAPES[name])
