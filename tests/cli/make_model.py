"""make_model.py GOLDEN TARGET: a tiny random model with a tokenizer of printable ASCII and a chat template."""
import json
import shutil
import sys
from pathlib import Path

golden, target = Path(sys.argv[1]), Path(sys.argv[2])
target.mkdir(parents=True)
for name in ("config.json", "model.safetensors"):
    shutil.copy(golden / name, target / name)

# 97 ids: the space (spelled as byte-level tokenizers do), two special tokens, the 94 visible characters.
vocab = {"\u0120": 0, "<|im_start|>": 1, "<|im_end|>": 2}
for code in range(33, 127):
    vocab[chr(code)] = len(vocab)
special = [
    {"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for text, id in (("<|im_start|>", 1), ("<|im_end|>", 2))
]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
    "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": vocab, "merges": []},
}
template = ("{% for message in messages %}<|im_start|>{{ message.role }}: {{ message.content }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}")
(target / "tokenizer.json").write_text(json.dumps(tokenizer))
(target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
