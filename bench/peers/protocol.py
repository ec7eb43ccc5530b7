"""The peer's side of the protocol (README.md): JSON lines on stdin and stdout."""
import json
import os
import sys


def serve(load):
    """Calls load() once; it returns (name, most_context, most_rows, run) with run(rows, tokens, context, every) -> seconds.

    What libraries print goes to stderr: stdout carries the protocol only."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**message):
        out.write(json.dumps(message) + "\n")

    try:
        name, most_context, most_rows, run = load()
        say(peer=name, most_context=most_context, most_rows=most_rows)
        for line in sys.stdin:
            shape = json.loads(line)
            say(seconds=run(shape["rows"], shape["tokens"], shape["context"], shape["head"] == "every"))
    except Exception as error:  # told to the other side, which decides
        say(error=f"{type(error).__name__}: {error}")
        raise SystemExit(1)


def token(position, vocab):
    """The made-up token of a position, as Outrider's bench takes it."""
    return (position + 1) * 7919 % vocab
