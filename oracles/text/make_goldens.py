"""Makes oracles/goldens/text/: run `scripts/fetch_test_data` first, then this with requirements.txt installed.

Texts that carry other people's licences (templates, vocabularies) are not written, only counts and FNV-1a hashes."""

import datetime
import json
import os
import pathlib
import sys

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from conversations import CONVERSATIONS
from nasty_strings import nasty_strings
from template_features import contexts
from tiny_corpus import corpus

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "goldens" / "text"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outrider" / "test-data"
FAMILIES = ["qwen3", "llama2", "llama3", "llama3_1", "gemma3", "gptoss", "deepseek_v3"]
LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def hash_ids(ids):
    return fnv(",".join(map(str, ids)).encode())


def hash_text(text):
    return fnv(text.encode())


def random_ids(size):
    """40 sequences the C++ test makes in the same way: a 64-bit LCG, top 32 bits."""
    state = 12345
    sequences = []
    for _ in range(40):
        ids = []
        for _ in range(24):
            state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            ids.append((state >> 32) % size)
        sequences.append(ids)
    return sequences


def token_golden(name, tokenizer, strings):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    rows = []
    for text in strings:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        tokenizer.encode_special_tokens = True
        spelled = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        row = [len(plain), hash_ids(plain), hash_ids(special), hash_ids(spelled),
               hash_text(tokenizer.decode(special, skip_special_tokens=False)), hash_text(tokenizer.decode(special, skip_special_tokens=True))]
        rows.append(row + ([plain] if len(plain) <= 6 else []))
    decoded = [[hash_text(tokenizer.decode(ids, skip_special_tokens=False)), hash_text(tokenizer.decode(ids, skip_special_tokens=True))]
               for ids in random_ids(size)]
    write(f"tokenizer_{name}.json", {"family": name, "tokenizers": tokenizers.__version__, "size": size, "strings": rows, "random": decoded})


def write(name, value):
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    text = text.replace("],[", "],\n[").replace('{"name"', '\n{"name"')
    (OUT / name).write_text(text + "\n")


def smollm2_tokenizer():
    """Built from the GGUF's lists as the original tokenizer.json of the family is: digits alone, GPT-2 split."""
    metadata = smollm2_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(tokens[i], special=True, normalized=False) for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens(control)
    return tokenizer, metadata


def smollm2_metadata():
    from gguf import GGUFReader

    reader = GGUFReader(CACHE / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return {key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer.")}


def compile_template(source):
    return chat_template_utils._compile_jinja_template(source)


def without_date(text):
    today = datetime.datetime.now()
    return text.replace(today.strftime("%Y-%m-%d"), "<today>").replace(today.strftime("%d %b %Y"), "<today>")


def render(source, context, generation_prompt):
    """As PreTrainedTokenizerBase.apply_chat_template(tokenize=False) renders."""
    context = json.loads(json.dumps(context))
    messages = chat_template_utils._normalize_chat_messages(context.pop("messages"))
    texts, _ = chat_template_utils.render_jinja_template(conversations=[messages], chat_template=source, add_generation_prompt=generation_prompt, **context)
    return without_date(texts[0])


def outcome(source, context, generation_prompt):
    try:
        return {"text": render(source, context, generation_prompt)}
    except Exception as fault:  # the kind of fault is Jinja's business; that it is one is what counts
        return {"error": str(fault).split("\n")[0][:120]}


def template_golden(name, source, special_tokens):
    rows = []
    for _, context in CONVERSATIONS:
        for generation_prompt in (False, True):
            result = outcome(source, {**special_tokens, **context}, generation_prompt)
            rows.append([len(result["text"].encode()), hash_text(result["text"])] if "text" in result else ["error", result["error"]])
    write(f"template_{name}.json", {"family": name, "transformers": transformers.__version__, "rows": rows})


def train_byte_level():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=640, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", bos)])
    return tokenizer


def train_sentencepiece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    # Trained within words, as sentencepiece does; encoded without a split, as it does too.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=special, limit_alphabet=90)
    tokenizer.train_from_iterator(corpus(), trainer)
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in ("<unk>", "<s>", "</s>")]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    strings = nasty_strings()
    write("strings.json", {"strings": strings})
    write("conversations.json", {"conversations": [{"name": name, "context": context} for name, context in CONVERSATIONS]})
    features = [{"name": name, "template": source, "context": context, **outcome(source, context, False)} for name, source, context in contexts()]
    write("template_features.json", {"transformers": transformers.__version__, "features": features})
    if sys.argv[1:] == ["features"]:
        return

    for name, train in (("tiny_byte_level", train_byte_level), ("tiny_sentencepiece", train_sentencepiece)):
        path = OUT / f"{name}.tokenizer.json"
        if not path.exists():  # training breaks ties by hash order: made once, then kept
            path.write_text(json.dumps(json.loads(train().to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
        token_golden(name, Tokenizer.from_file(str(path)), strings)

    for family in FAMILIES:
        folder = CACHE / "tokenizers" / family
        raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
        token_golden(family, raw, strings)
        whole = AutoTokenizer.from_pretrained(str(folder))
        if whole.chat_template:
            template_golden(family, whole.chat_template, whole.special_tokens_map)
        differing = sum(whole(text, add_special_tokens=False).input_ids != raw.encode(text, add_special_tokens=False).ids for text in strings)
        # transformers 5 rebuilds some tokenizers from parts (llama2: no prefix after special tokens); tokenizer.json rules.
        print(family, "template" if whole.chat_template else "no template", "transformers differs on", differing, "of", len(strings))

    tokenizer, metadata = smollm2_tokenizer()
    token_golden("smollm2", tokenizer, strings)
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {key: tokens[metadata[f"tokenizer.ggml.{field}"]] for key, field in
               (("bos_token", "bos_token_id"), ("eos_token", "eos_token_id"), ("unk_token", "unknown_token_id"), ("pad_token", "padding_token_id"))}
    template_golden("smollm2", metadata["tokenizer.chat_template"], special)


if __name__ == "__main__":
    main()
