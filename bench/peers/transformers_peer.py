"""transformers_peer.py MODEL_DIRECTORY NAME THREADS f32|bf16: transformers with torch as a peer (README.md).

Reads an MLX checkpoint of the llama family and dequantizes it in memory."""
import json
import os
import sys
import time
from pathlib import Path

from protocol import serve, token

MOST_CONTEXT, MOST_ROWS = 2048, 8
PROMPT_STEP = 512
os.environ["HF_HUB_OFFLINE"] = "1"


def load():
    import torch
    from safetensors import safe_open
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    directory, threads, precision = Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(threads)
    config = json.loads((directory / "config.json").read_text())
    quantization = config.pop("quantization", {})
    vocab = config["vocab_size"]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]

    def dequantized(file, name, keys):
        weight = file.get_tensor(name + ".weight")
        if name + ".scales" not in keys:
            return weight.to(dtype)
        bits = {**quantization, **quantization.get(name, {})}["bits"]
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        codes = ((weight.view(torch.int32)[..., None] >> shifts) & (2 ** bits - 1)).flatten(1)
        scales, biases = (file.get_tensor(f"{name}.{part}").float()[..., None] for part in ("scales", "biases"))
        values = codes.float().unflatten(1, (scales.shape[1], -1)) * scales + biases
        return values.flatten(1).to(dtype)

    torch.set_default_dtype(dtype)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    state = {}
    for path in sorted(directory.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            keys = set(file.keys())
            for key in keys:
                if key.endswith(".weight"):
                    state[key] = dequantized(file, key.removesuffix(".weight"), keys)
    model.load_state_dict(state, strict=not config.get("tie_word_embeddings", False), assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its buffers are in no file
    model.tie_weights()
    model.eval()
    kept = {}  # (rows, context) -> cache

    def step(cache, rows, first, count, logits):
        ids = torch.tensor([[token(first + i, vocab) for i in range(count)]] * rows)
        model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=logits)

    def advance(cache, rows, first, count, logits):
        for done in range(0, count, PROMPT_STEP):
            step(cache, rows, first + done, min(PROMPT_STEP, count - done), logits)

    @torch.inference_mode()
    def run(rows, tokens, context, every):
        if (rows, context) not in kept:
            kept[rows, context] = DynamicCache()
            advance(kept[rows, context], rows, 0, context, 1)
        cache = kept[rows, context]
        begin = time.perf_counter()
        advance(cache, rows, context, tokens, tokens if every else 1)
        seconds = time.perf_counter() - begin
        if context > 0:
            cache.crop(-tokens)
        else:
            kept[rows, context] = DynamicCache()
        return seconds

    return f"{sys.argv[2]} {precision}", MOST_CONTEXT, MOST_ROWS, run


serve(load)
