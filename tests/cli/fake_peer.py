"""fake_peer.py NAME SECONDS LOG: a peer that claims a time for every run and notes what it was asked."""
import json
import sys

name, seconds, log = sys.argv[1], float(sys.argv[2]), sys.argv[3]
print(json.dumps({"peer": name, "most_context": 100, "most_rows": 8}), flush=True)
with open(log, "w") as notes:
    for line in sys.stdin:
        shape = json.loads(line)
        notes.write(json.dumps([shape[key] for key in ("rows", "tokens", "context", "head")]) + "\n")
        print(json.dumps({"seconds": seconds * shape["tokens"]}), flush=True)
    notes.write("end\n")
