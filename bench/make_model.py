"""make_model.py TARGET: an MLX checkpoint of MiniCPM5-1B's shape with random weights (4-bit groups of 64, 8-bit
embedding and head), for measuring. Standard library only; the same seed gives the same bytes.

Scales are f16 and every bias is -2^(bits-1) * scale, both exact, so that bench/peers can write the very same weights as
GGUF Q4_0, Q4_1 and Q8_0. A weight is about N(0, 0.02): with inputs of rms 1 the activations stay near 1 through all layers.
"""
import json
import random
import struct
import sys
from pathlib import Path

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, FFN, VOCAB = 1536, 24, 16, 2, 128, 4608, 130560
GROUP = 64
WEIGHT_SPREAD = 0.02
SEED = 5
# Scales repeat after this many: enough to be no pattern to a cache, few enough to draw in an instant.
DISTINCT_SCALES = 1 << 16

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_WIDTH, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6, "rope_theta": 5e6, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "torch_dtype": "float16", "bos_token_id": 0, "eos_token_id": 1,
    "quantization": {"group_size": GROUP, "bits": 4, "model.embed_tokens": {"group_size": GROUP, "bits": 8},
                     "lm_head": {"group_size": GROUP, "bits": 8}},
}


def linears():
    """(name, output rows, inputs, bits) of every quantized matrix."""
    yield "model.embed_tokens", VOCAB, WIDTH, 8
    yield "lm_head", VOCAB, WIDTH, 8
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        yield attention + "q_proj", HEADS * HEAD_WIDTH, WIDTH, 4
        yield attention + "k_proj", KV_HEADS * HEAD_WIDTH, WIDTH, 4
        yield attention + "v_proj", KV_HEADS * HEAD_WIDTH, WIDTH, 4
        yield attention + "o_proj", WIDTH, HEADS * HEAD_WIDTH, 4
        yield mlp + "gate_proj", FFN, WIDTH, 4
        yield mlp + "up_proj", FFN, WIDTH, 4
        yield mlp + "down_proj", WIDTH, FFN, 4


def norms():
    yield "model.norm.weight"
    for layer in range(LAYERS):
        yield f"model.layers.{layer}.input_layernorm.weight"
        yield f"model.layers.{layer}.post_attention_layernorm.weight"


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


def main():
    target = Path(sys.argv[1])
    part = target.with_name(target.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    draw = random.Random(SEED)
    scales = {bits: f16_scales(draw, bits) for bits in (4, 8)}
    header, at = {}, 0

    def place(name, dtype, shape, size):
        nonlocal at
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size

    for name, rows, inputs, bits in linears():
        place(name + ".weight", "U32", [rows, inputs * bits // 32], rows * inputs * bits // 8)
        place(name + ".scales", "F16", [rows, inputs // GROUP], rows * inputs // GROUP * 2)
        place(name + ".biases", "F16", [rows, inputs // GROUP], rows * inputs // GROUP * 2)
    for name in norms():
        place(name, "F16", [WIDTH], WIDTH * 2)

    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(part / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, rows, inputs, bits in linears():
            file.write(draw.randbytes(rows * inputs * bits // 8))
            for block in scales[bits]:
                file.write(repeated(block, rows * inputs // GROUP * 2))
        for _ in norms():
            file.write(struct.pack(f"<{WIDTH}e", *([1.0] * WIDTH)))
    (part / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    part.rename(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
