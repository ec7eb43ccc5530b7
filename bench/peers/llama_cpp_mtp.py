"""llama_cpp_mtp.py MODEL.gguf THREADS [ACCEPTANCE]: llama.cpp's own MTP on a model with such a head (make_gguf.py), one
row, by its C interface: rounds of drafting, verifying and rolling back at each depth, by turns with plain decoding. Which
proposals stand is scripted as `outrider bench mtp --acceptance` does it (0.85,0.67,0.52): the passes and their cost are
real. JSON lines in the form of `outrider bench`. Needs llama-cpp-python 0.3.36 and numpy.
"""
import json
import sys
import time

from llama_cpp_context import Sequence, load_model
from protocol import token

PROMPT, TURNS, TURN_TOKENS, WARM_UP = 64, 5, 16, 8


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


class Plain:
    def __init__(self, model, threads):
        self.target = Sequence(model, threads)
        self.target.decode([token(i, self.target.vocab) for i in range(PROMPT)], every=False)
        self.pending = self.target.argmax(-1)

    def round(self):
        self.target.decode([self.pending])
        self.pending = self.target.argmax(-1)
        return 1, 0, 0


class Drafted:
    def __init__(self, model, threads, depth, rates):
        self.depth, self.script = depth, Script(rates)
        self.target = Sequence(model, threads, slots=depth, hiddens=True)
        self.head = Sequence(model, threads, target=self.target)
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
    model = load_model(path)
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
