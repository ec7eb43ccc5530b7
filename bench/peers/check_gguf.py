"""check_gguf.py MODEL.gguf IDS LOGITS.safetensors: does llama.cpp run on what make_gguf.py wrote the model that Outrider
runs? LOGITS is what `outrider logits --ids IDS` wrote of the checkpoint, with --mtp also of its head. Prints how far
llama.cpp's logits lie from ours, as a share of their spread over the vocabulary, and fails above MOST: its 8-bit input codes
give 0.002 to 0.05, another model 1 and more. Random weights say less than trained ones: their logits hardly depend on the
tokens before. Needs llama-cpp-python 0.3.36 and numpy."""
import json
import struct
import sys

import numpy as np
from llama_cpp_context import Sequence, load_model

THREADS, MOST = 2, 0.1


def tensors(path):
    """{name: f32 array} of a safetensors file."""
    data = np.fromfile(path, np.uint8)
    size = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8:8 + size].tobytes())
    return {name: data[8 + size:][slice(*each["data_offsets"])].view(np.float32).reshape(each["shape"])
            for name, each in header.items() if name != "__metadata__"}


def compare(what, sequence, ours):
    errors, same = [], 0
    for i, expected in enumerate(ours):
        theirs = sequence.logits(i)
        errors.append(float(np.linalg.norm(theirs - expected) / expected.std() / len(expected) ** 0.5))
        same += theirs.argmax() == expected.argmax()
    print(f"{what}: {len(ours)} tokens, error over spread mean {np.mean(errors):.2g}, most {max(errors):.2g}; "
          f"same first choice {same} of {len(ours)}")
    return max(errors) <= MOST


def main():
    path, ids, ours = sys.argv[1], [int(each) for each in sys.argv[2].split(",")], tensors(sys.argv[3])
    model = load_model(path)
    target = Sequence(model, THREADS, hiddens="mtp1_logits" in ours)
    target.decode(ids)
    good = compare("trunk", target, ours["logits"])
    if "mtp1_logits" in ours:
        head = Sequence(model, THREADS, target=target)
        head.decode(ids[1:], [target.hidden(i) for i in range(len(ids) - 1)])
        good = compare("head", head, ours["mtp1_logits"]) and good
    return 0 if good else 1


if len(sys.argv) != 4:
    sys.exit(__doc__)
sys.exit(main())
