"""Goldens of SmolLM2-135M-Instruct with its real weights (goldens/smollm2/).

Reads the Q4_1 GGUF file, dequantizes every tensor to float32 with the block formulas written out here (checked against
the `gguf` package), un-permutes the q and k rows, and runs transformers in float32 with eager attention.

  prompts.json     8 prompts: text, ids, 64 greedy tokens (end tokens ignored), the gap between the two largest logits
                   before each greedy token, and `stop_at`, the index of the first end token among them (or null)
  perplexity.json  mean negative log likelihood of text.txt in non-overlapping windows of 512 tokens; each window is
                   scored from its second token on
  logits.safetensors  `last_row.<i>` [V] f32: the logits after the last prompt token of prompt i

Usage: smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf [--check-float64]
"""

import argparse
import hashlib
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GREEDY_TOKENS = 64
SEQUENCE_LENGTH = 512
STOP_IDS = (2,)  # <|im_end|>, the file's eos_token_id
GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens" / "smollm2"

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(*turns: str, system: str = SYSTEM) -> str:
    """The file's chat template for alternating user and assistant turns, with the generation prompt."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for i, turn in enumerate(turns):
        text += f"<|im_start|>{'user' if i % 2 == 0 else 'assistant'}\n{turn}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


PROMPTS = {
    "chat_explain": chat("Explain why the sky is blue, in a few sentences."),
    "chat_list": chat("Give me a packing list for a three day hike in the mountains."),
    "chat_code": chat("Write a Python function that returns the n-th Fibonacci number, and explain how it works."),
    "chat_turns": chat(
        "What is the capital of France?",
        "The capital of France is Paris.",
        "Tell me more about its history.",
        system="You answer in plain English.",
    ),
    "code": "#include <vector>\n\n// Returns the index of the largest element, or -1 for an empty vector.\n"
    "int argmax(const std::vector<float>& values) {\n",
    "story": "The old lighthouse keeper climbed the stairs one last time. From the top he could see",
    "french": "Il était une fois, dans un petit village près de la mer, une jeune fille qui",
    "facts": "1. Water boils at 100 degrees Celsius at sea level.\n"
    "2. Light travels at about 300,000 km per second.\n3.",
}


def dequantize(tensor: gguf.ReaderTensor) -> np.ndarray:
    """float32 values of one GGUF tensor as [rows, columns] (or [columns]). Block layouts: models.md section 1.11."""
    shape = [int(n) for n in reversed(tensor.shape)]
    kind = tensor.tensor_type.name
    raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
    if kind == "F32":
        values = raw.view("<f4").copy()
    elif kind == "Q4_1":
        blocks = raw.reshape(-1, 20)
        scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
        minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
        codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
        values = scale * codes + minimum
    elif kind == "Q8_0":
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
        values = scale * blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    else:
        raise SystemExit(f"{tensor.name}: type {kind} is not expected in this file")
    values = values.reshape(shape)
    reference = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    if not np.array_equal(values, reference):
        raise SystemExit(f"{tensor.name}: our dequantization differs from the gguf package")
    return values


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF row h*D + 2i + s becomes HF row h*D + s*D/2 + i."""
    width = rows.shape[0] // heads
    return rows.reshape(heads, width // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def load(path: pathlib.Path) -> tuple[LlamaForCausalLM, Tokenizer]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{path}: SHA-256 is {digest}, expected {SHA256}")
    reader = gguf.GGUFReader(path)

    def meta(key: str):
        return reader.fields[key].contents()

    heads, kv_heads = meta("llama.attention.head_count"), meta("llama.attention.head_count_kv")
    config = LlamaConfig(
        hidden_size=meta("llama.embedding_length"),
        num_hidden_layers=meta("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=meta("llama.feed_forward_length"),
        vocab_size=meta("llama.vocab_size"),
        rms_norm_eps=meta("llama.attention.layer_norm_rms_epsilon"),
        max_position_embeddings=meta("llama.context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": meta("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=meta("tokenizer.ggml.bos_token_id"),
        eos_token_id=meta("tokenizer.ggml.eos_token_id"),
    )
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
    names |= {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm"}
    names |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in reader.tensors:
        values = dequantize(tensor)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
            if parts[2] in ("attn_q", "attn_k"):
                values = unpermute(values, heads if parts[2] == "attn_q" else kv_heads)
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        state[name] = torch.from_numpy(np.ascontiguousarray(values))
    model = LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys or missing.missing_keys not in ([], ["lm_head.weight"]):
        raise SystemExit(f"tensors do not match the model: {missing}")
    model.tie_weights()

    tokens = meta("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in meta("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, meta("tokenizer.ggml.token_type")) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return model, tokenizer


def forward(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of one full forward pass without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model: LlamaForCausalLM, ids: list[int], count: int) -> list[int]:
    out = []
    with torch.inference_mode():
        step = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        for i in range(count):
            out.append(int(step.logits[0, -1].argmax()))
            if i + 1 < count:
                step = model(torch.tensor([[out[-1]]]), past_key_values=step.past_key_values, use_cache=True)
    return out


def make_prompts(model: LlamaForCausalLM, tokenizer: Tokenizer, check: LlamaForCausalLM | None) -> dict:
    prompts, rows = [], {}
    for i, (name, text) in enumerate(PROMPTS.items()):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokens = greedy(model, ids, GREEDY_TOKENS)
        logits = forward(model, ids + tokens[:-1])[len(ids) - 1 :]
        top = logits.topk(2, dim=-1)
        if top.indices[:, 0].tolist() != tokens:
            raise SystemExit(f"{name}: cached decoding and the full forward pass disagree")
        gaps = (top.values[:, 0] - top.values[:, 1]).tolist()
        rows[f"last_row.{i}"] = np.ascontiguousarray(logits[0].numpy())
        stops = [j for j, token in enumerate(tokens) if token in STOP_IDS]
        prompts.append(
            {
                "name": name,
                "text": text,
                "ids": ids,
                "greedy": tokens,
                "gap": [float(f"{gap:.6g}") for gap in gaps],
                "stop_at": stops[0] if stops else None,
                "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False),
            }
        )
        line = f"{name}: {len(ids)} ids, smallest gap {min(gaps):.2e}, stop_at {prompts[-1]['stop_at']}"
        if check is not None:
            exact = forward(check, ids + tokens[:-1])[len(ids) - 1 :]
            same = int((exact.argmax(-1) == torch.tensor(tokens)).sum())
            line += f"; float64: {same}/{len(tokens)} equal, max abs {float((exact - logits).abs().max()):.1e}"
        print(line)
    save_file(rows, GOLDENS / "logits.safetensors")
    return {
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": SHA256,
        "made_by": "oracles/models/smollm2.py, transformers float32, eager attention",
        "stop_ids": list(STOP_IDS),
        "prompts": prompts,
    }


def make_perplexity(model: LlamaForCausalLM, tokenizer: Tokenizer) -> dict:
    data = (GOLDENS / "text.txt").read_bytes()
    ids = tokenizer.encode(data.decode("utf-8"), add_special_tokens=False).ids
    windows = []
    for begin in range(0, len(ids), SEQUENCE_LENGTH):
        window = ids[begin : begin + SEQUENCE_LENGTH]
        if len(window) < 2:
            continue
        logp = forward(model, window).double().log_softmax(-1)
        nll = -logp[torch.arange(len(window) - 1), torch.tensor(window[1:])]
        windows.append({"begin": begin, "length": len(window), "scored": len(nll), "nll_sum": float(nll.sum())})
    total, scored = sum(w["nll_sum"] for w in windows), sum(w["scored"] for w in windows)
    print(f"perplexity {np.exp(total / scored):.6f} over {scored} of {len(ids)} tokens")
    return {
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "text": "text.txt",
        "text_sha256": hashlib.sha256(data).hexdigest(),
        "sequence_length": SEQUENCE_LENGTH,
        "definition": "non-overlapping windows of sequence_length tokens (the last one shorter); each window is scored "
        "from its second token; nll = sum of nll_sum / tokens; perplexity = exp(nll)",
        "tokens": scored,
        "nll": total / scored,
        "perplexity": float(np.exp(total / scored)),
        "windows": windows,
        "ids": ids,
    }


def write_json(path: pathlib.Path, value: dict) -> None:
    """JSON with one line per short list, so that diffs stay readable."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    path.write_text(compact_lists(text) + "\n", encoding="utf-8")


def compact_lists(text: str) -> str:
    """Joins lists of plain numbers onto one line."""
    out, lines, i = [], text.split("\n"), 0
    while i < len(lines):
        if lines[i].rstrip().endswith("[") and not lines[i + 1].lstrip().startswith(("{", '"', "[")):
            items = []
            i_end = i + 1
            while not lines[i_end].lstrip().startswith("]"):
                items.append(lines[i_end].strip())
                i_end += 1
            out.append(lines[i] + " ".join(items) + lines[i_end].strip())
            i = i_end + 1
        else:
            out.append(lines[i])
            i += 1
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--check-float64", action="store_true", help="repeat the greedy rows in float64 and compare")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = load(args.gguf)
    check = None
    if args.check_float64:
        check = LlamaForCausalLM._from_config(model.config, dtype=torch.float64, attn_implementation="eager").eval()
        check.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    write_json(GOLDENS / "prompts.json", make_prompts(model, tokenizer, check))
    write_json(GOLDENS / "perplexity.json", make_perplexity(model, tokenizer))


if __name__ == "__main__":
    main()
