"""check_logits.py OURS GOLDEN LIMIT: the largest difference of logits and hidden_pre_norm is below LIMIT."""
import json
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = {"F32": "f", "I32": "i"}[entry["dtype"]]
        raw = data[8 + size + begin : 8 + size + end]
        tensors[name] = (entry["shape"], struct.unpack(f"<{len(raw) // 4}{kind}", raw))
    return tensors


ours, golden = read(sys.argv[1]), read(sys.argv[2])
if sys.argv[3] == "ids":
    print(",".join(map(str, golden["ids"][1])))
    sys.exit(0)
for name in ("logits", "hidden_pre_norm"):
    assert ours[name][0] == golden[name][0], (name, ours[name][0], golden[name][0])
    worst = max(abs(a - b) for a, b in zip(ours[name][1], golden[name][1]))
    assert worst < float(sys.argv[3]), (name, worst)
