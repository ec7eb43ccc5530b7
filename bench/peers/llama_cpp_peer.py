"""llama_cpp_peer.py MODEL.gguf NAME THREADS: llama.cpp as a peer (README.md), by its C interface."""
import sys
import time

import llama_cpp as L
from llama_cpp_context import load_model
from protocol import serve, token

MOST_CONTEXT, MOST_TOKENS, MOST_ROWS = 2048, 2048, 8
CELLS = MOST_CONTEXT + MOST_TOKENS + 1024  # of the KV cache that all sequences share
MICRO_BATCH = 512  # llama.cpp's default, and the tokens of one step of Outrider's prompts


class LlamaCpp:
    def __init__(self, path, threads):
        self.model = load_model(path)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CELLS, MOST_TOKENS, MICRO_BATCH, MOST_ROWS
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True  # one cache for all sequences: their contexts may differ
        self.context = L.llama_init_from_model(self.model, params)
        self.memory = L.llama_get_memory(self.context)
        self.lengths = [0] * MOST_ROWS

    def decode(self, rows, tokens, every):
        """`tokens` new tokens of each of the first `rows` sequences; seconds."""
        count = rows * tokens
        batch = L.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i in range(count):
            row, at = divmod(i, tokens)
            position = self.lengths[row] + at
            batch.token[i], batch.pos[i] = token(position, self.vocab), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
            batch.logits[i] = every or at == tokens - 1
        begin = time.perf_counter()
        code = L.llama_decode(self.context, batch)
        L.llama_synchronize(self.context)
        seconds = time.perf_counter() - begin
        L.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return seconds

    def cut(self, row, length):
        L.llama_memory_seq_rm(self.memory, row, length, -1)
        self.lengths[row] = length

    def run(self, rows, tokens, context, every):
        for row in range(MOST_ROWS):
            self.cut(row, min(self.lengths[row], context if row < rows else 0))
        for row in range(rows):
            if self.lengths[row] < context:
                if row > 0:
                    raise ValueError("several rows behind a context are not asked of this peer")
                missing = context - self.lengths[row]
                self.decode(1, missing, False)
                self.lengths[row] = context
        seconds = self.decode(rows, tokens, every)
        for row in range(rows):
            self.cut(row, context)
        return seconds


def load():
    path, name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    peer = LlamaCpp(path, threads)
    return name, MOST_CONTEXT, MOST_ROWS, peer.run


serve(load)
