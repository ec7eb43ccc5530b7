"""llama_cpp_mtp.py MODEL.gguf THREADS [ACCEPTANCE]: llama.cpp's own MTP on a model with such a head (make_gguf.py), one
row, by its C interface: rounds of drafting, verifying and rolling back at each depth, by turns with plain decoding. Which
proposals stand is scripted as `outrider bench mtp --acceptance` does it (0.85,0.67,0.52): the passes and their cost are
real. JSON lines in the form of `outrider bench`. Needs llama-cpp-python 0.3.36 and numpy.
"""
import ctypes
import json
import sys
import time

import llama_cpp as L
import numpy as np
from protocol import token

CONTEXT, PROMPT, TURNS, TURN_TOKENS, WARM_UP = 1024, 64, 5, 16, 8


@L.llama_log_callback
def only_errors(level, text, _):
    if level >= 4:
        sys.stderr.write(text.decode(errors="replace"))


def nextn(name, mangled, restype, *argtypes):
    """A function of llama.cpp's staging interface, which the library exports under its C++ name."""
    function = getattr(L.llama_cpp._lib, mangled, None)
    if function is None:
        sys.exit(f"this libllama has no {name}: MTP needs the one of llama-cpp-python 0.3.36")
    function.restype, function.argtypes = restype, argtypes
    return function


set_nextn = nextn("llama_set_embeddings_nextn", "_Z26llama_set_embeddings_nextnP13llama_contextbb", None,
                  ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
nextn_ith = nextn("llama_get_embeddings_nextn_ith", "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
                  ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int)


class Script:
    """At each place the given share of the proposals that are reached, spread evenly."""
    def __init__(self, rates):
        self.rates, self.reached, self.right = rates, [0] * len(rates), [0] * len(rates)

    def accepted(self, depth):
        for place in range(depth):
            self.reached[place] += 1
            if self.right[place] + 0.5 > self.rates[place] * self.reached[place]:
                return place
            self.right[place] += 1
        return depth


class Context:
    def __init__(self, model, threads, kind, slots, other=None):
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT, 512, 512, 1
        params.n_threads = params.n_threads_batch = threads
        params.ctx_type, params.n_rs_seq = kind, slots
        if other:
            params.ctx_other = other.pointer
        self.pointer = L.llama_init_from_model(model, params)
        if not self.pointer:
            sys.exit("llama.cpp refuses the context")
        self.memory, self.length = L.llama_get_memory(self.pointer), 0
        self.width = L.llama_model_n_embd(model)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        set_nextn(self.pointer, True, kind == L.LLAMA_CONTEXT_TYPE_MTP)

    def decode(self, tokens, hiddens=None, every=True):
        count = len(tokens)
        batch = L.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        rows = None
        if hiddens is not None:  # a head takes tokens and hiddens together
            rows = np.ascontiguousarray(np.stack(hiddens), dtype=np.float32)
            batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        for i, each in enumerate(tokens):
            batch.token[i], batch.pos[i] = int(each), self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == count - 1
        code = L.llama_decode(self.pointer, batch)
        L.llama_synchronize(self.pointer)
        batch.embd = None
        L.llama_batch_free(batch)
        if code != 0:
            sys.exit(f"llama_decode returned {code}")
        self.length += count

    def argmax(self, i):
        return int(np.ctypeslib.as_array(L.llama_get_logits_ith(self.pointer, i), (self.vocab,)).argmax())

    def hidden(self, i):
        return np.ctypeslib.as_array(nextn_ith(self.pointer, i), (self.width,)).copy()

    def cut(self, length):
        if not L.llama_memory_seq_rm(self.memory, 0, length, -1):
            sys.exit("llama.cpp cannot roll this model back")
        self.length = length


class Plain:
    def __init__(self, model, threads):
        self.target = Context(model, threads, L.LLAMA_CONTEXT_TYPE_DEFAULT, 0)
        self.target.decode([token(i, self.target.vocab) for i in range(PROMPT)], every=False)
        self.pending = self.target.argmax(-1)

    def round(self):
        self.target.decode([self.pending])
        self.pending = self.target.argmax(-1)
        return 1, 0, 0


class Drafted:
    def __init__(self, model, threads, depth, rates):
        self.depth, self.script = depth, Script(rates)
        self.target = Context(model, threads, L.LLAMA_CONTEXT_TYPE_DEFAULT, depth + 1)
        self.head = Context(model, threads, L.LLAMA_CONTEXT_TYPE_MTP, 0, self.target)
        prompt = [token(i, self.target.vocab) for i in range(PROMPT)]
        self.target.decode(prompt)
        hiddens = [self.target.hidden(i) for i in range(PROMPT)]
        self.pending = self.target.argmax(-1)
        # Pair p: (token p + 1, hidden p).
        self.head.decode(prompt[1:], hiddens[:-1], every=False)
        self.pairs = [(self.pending, hiddens[-1])]  # known, and not yet in the head's cache

    def round(self):
        begin = time.perf_counter()
        self.head.decode([pair[0] for pair in self.pairs], [pair[1] for pair in self.pairs], every=False)
        known, last = self.head.length, len(self.pairs) - 1
        proposals = []
        while True:
            proposals.append(self.head.argmax(-1))
            if len(proposals) == self.depth:
                break
            hidden = self.head.hidden(last)
            self.head.decode([proposals[-1]], [hidden])
            last = 0
        drafted = time.perf_counter()
        start = self.target.length
        self.target.decode([self.pending] + proposals)
        choices = [self.target.argmax(i) for i in range(self.depth + 1)]
        verified = time.perf_counter()
        accepted = self.script.accepted(self.depth)
        # What stands is scripted: the tokens are those proposed, whatever the target chose.
        self.pairs = [(proposals[i], self.target.hidden(i)) for i in range(accepted)]
        self.pending = choices[accepted]
        self.pairs.append((self.pending, self.target.hidden(accepted)))
        self.target.cut(start + accepted + 1)
        self.head.cut(known)
        return accepted + 1, drafted - begin, verified - drafted


def turn(way, least, totals):
    tokens, begin = 0, time.perf_counter()
    while tokens < least:
        emitted, draft, verify = way.round()
        tokens += emitted
        totals["rounds"] += 1
        totals["draft"] += draft
        totals["verify"] += verify
    totals["tokens"] += tokens
    totals["seconds"] += time.perf_counter() - begin


def row(case, value, unit):
    print(json.dumps({"suite": "mtp", "case": case, "value": value, "unit": unit, "limit": None, "of_limit": None,
                      "peer": "llama.cpp", "peer_value": None, "ratio": None}), flush=True)


def main():
    path, threads = sys.argv[1], int(sys.argv[2])
    rates = [float(rate) for rate in (sys.argv[3] if len(sys.argv) > 3 else "0.85,0.67,0.52").split(",")]
    L.llama_backend_init()
    L.llama_log_set(only_errors, ctypes.c_void_p(0))
    params = L.llama_model_default_params()
    params.load_mtp = True
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"cannot load {path}")
    ways = {"plain": Plain(model, threads)}
    ways.update({f"depth {d}": Drafted(model, threads, d, rates) for d in range(1, len(rates) + 1)})
    fresh = lambda: {"rounds": 0, "tokens": 0, "seconds": 0.0, "draft": 0.0, "verify": 0.0}
    totals = {name: fresh() for name in ways}
    for way in ways.values():
        turn(way, WARM_UP, fresh())
    for _ in range(TURNS):
        for name, way in ways.items():
            turn(way, TURN_TOKENS, totals[name])
    plain = totals["plain"]["tokens"] / totals["plain"]["seconds"]
    for name, t in totals.items():
        rate, case = t["tokens"] / t["seconds"], f"rows 1, {name}"
        row(case, rate, "tok/s")
        if name == "plain":
            continue
        row(f"{case}, over plain", rate / plain, "x")
        row(f"{case}, tokens of a round", t["tokens"] / t["rounds"], "x")
        row(f"{case}, draft of a round", 1e3 * t["draft"] / t["rounds"], "ms")
        row(f"{case}, verify of a round", 1e3 * t["verify"] / t["rounds"], "ms")


if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
main()
