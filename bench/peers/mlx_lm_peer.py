"""mlx_lm_peer.py MODEL_DIRECTORY NAME THREADS: mlx-lm on its CPU backend as a peer (README.md).

THREADS cannot be told to MLX: the process is bound to as many processors instead."""
import os
import sys
import time
from pathlib import Path

from protocol import serve, token

MOST_CONTEXT, MOST_ROWS = 2048, 8
PROMPT_STEP = 512


def load():
    threads = int(sys.argv[3])
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    import mlx.core as mx
    from mlx_lm.models import cache as kv
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, config = load_model(Path(sys.argv[1]))
    # As f16, which this checkpoint may hold, MLX's CPU backend converts each value in software: 36 s a token where f32 takes 1.1 s (1B, 4 bit).
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    vocab = config["vocab_size"]
    kept = {}  # (rows, context) -> cache

    def ids(rows, first, count):
        return mx.array([[token(first + i, vocab) for i in range(count)]] * rows)

    def advance(cache, rows, first, count):
        """Without logits, as mlx_lm runs prompts."""
        for done in range(0, count, PROMPT_STEP):
            model(ids(rows, first + done, min(PROMPT_STEP, count - done)), cache=cache)
            mx.eval([layer.state for layer in cache])

    def run(rows, tokens, context, every):
        if (rows, context) not in kept:
            kept[rows, context] = kv.make_prompt_cache(model)
            advance(kept[rows, context], rows, 0, context)
        cache = kept[rows, context]
        begin = time.perf_counter()
        silent = 0 if every else tokens - 1
        advance(cache, rows, context, silent)
        mx.eval(model(ids(rows, context + silent, tokens - silent), cache=cache))
        seconds = time.perf_counter() - begin
        kv.trim_prompt_cache(cache, tokens)
        return seconds

    return sys.argv[2], MOST_CONTEXT, MOST_ROWS, run


serve(load)
