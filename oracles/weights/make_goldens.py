"""Goldens of the weights room: quantized values as MLX and the gguf package see them.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install -r oracles/weights/requirements.txt
    /tmp/oracle/bin/python oracles/weights/make_goldens.py

Writes oracles/goldens/weights/{mlx,gguf}.safetensors (names below). Runs on MLX's CPU backend. Never run by the product.

mlx.safetensors
  f32.w [6, 256]; f32.bB.gG.{weight u32, scales, biases, values f32}: mx.quantize and mx.dequantize in float32
  bf16.w [6, 256] bf16; bf16.bB.gG.{weight, scales bf16, biases bf16}: scales rounded after the codes are made
  MODE.{weight u32, scales u8, values f32} for mxfp4, nvfp4, mxfp8 of f32.w
  nvfp4_global.{weight, scales, global_scale f32, values}: the same with the largest magnitude as global scale
gguf.safetensors
  TYPE.blocks u8 [rows, bytes], TYPE.values f32 [rows, 256]: blocks of random bits with finite scales (MXFP4: also the
  smallest two and the largest byte whose values are all finite), decoded by gguf
"""

import pathlib

import gguf
import mlx.core as mx
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[1] / "goldens" / "weights"
ROWS, WIDTH = 6, 256


def weights(rng):
    """Ordinary, tiny, one-signed, constant, zero and outlier rows: every branch of the quantizer."""
    w = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    w[1] *= 1e-4
    w[2] = np.abs(w[2]) + 0.25
    w[3, :128] = 0.75
    w[3, 128:] = -0.5
    w[4, :96] = 0
    w[5, ::37] *= 40
    return w


def make_mlx(rng):
    mx.set_default_device(mx.cpu)
    out = {}
    w = weights(rng)
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16)):
        x = mx.array(w).astype(dtype)
        out[f"{name}.w"] = x
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                q, scales, biases = mx.quantize(x, group_size=group, bits=bits)
                key = f"{name}.b{bits}.g{group}"
                out[f"{key}.weight"], out[f"{key}.scales"], out[f"{key}.biases"] = q, scales, biases
                if name == "f32":
                    out[f"{key}.values"] = mx.dequantize(q, scales, biases, group_size=group, bits=bits)
    for mode in ("mxfp4", "nvfp4", "mxfp8"):
        q, scales = mx.quantize(mx.array(w), mode=mode)
        out[f"{mode}.weight"], out[f"{mode}.scales"] = q, scales
        out[f"{mode}.values"] = mx.dequantize(q, scales, mode=mode, dtype=mx.float32)
    g = mx.max(mx.abs(mx.array(w)))
    q, scales = mx.quantize(mx.array(w), mode="nvfp4", global_scale=g)
    out["nvfp4_global.weight"], out["nvfp4_global.scales"], out["nvfp4_global.global_scale"] = q, scales, g
    out["nvfp4_global.values"] = mx.dequantize(q, scales, mode="nvfp4", global_scale=g, dtype=mx.float32)
    mx.save_safetensors(str(OUT / "mlx.safetensors"), out)


# (byte offsets of f16 scales in a block)
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}


def make_gguf(rng):
    out = {}
    for name, places in SCALES.items():
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        per_row = WIDTH // values
        blocks = rng.integers(0, 256, (3, per_row, size), dtype=np.uint8)
        for place in places:
            scale = (rng.standard_normal((3, per_row)) * 0.05).astype(np.float16)
            blocks[:, :, place:place + 2] = scale.view(np.uint8).reshape(3, per_row, 2)
        if name == "MXFP4":
            blocks[:, :, 0] = rng.integers(100, 140, (3, per_row))
            blocks[0, :3, 0] = 0, 1, 252
        flat = blocks.reshape(3, per_row * size)
        decoded = gguf.quants.dequantize(flat, kind).astype(np.float32)
        out[f"{name}.blocks"] = mx.array(flat)
        out[f"{name}.values"] = mx.array(decoded)
    mx.save_safetensors(str(OUT / "gguf.safetensors"), out)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(20240)
    make_mlx(generator)
    make_gguf(generator)
