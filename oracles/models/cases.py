"""The tiny random models of the llama graph, as data. tiny_llama.py turns each into goldens/models/<name>/.

A case is a config.json (written exactly as it stands here), how the tensors are stored, and which rows are kept.
Shapes: E hidden_size, N num_hidden_layers, H num_attention_heads, K num_key_value_heads, D head_dim, F
intermediate_size, V vocab_size.
"""

import dataclasses
import math


@dataclasses.dataclass
class Case:
    name: str
    config: dict  # config.json
    legacy: dict | None = None  # config_legacy.json: the same model, RoPE spelled rope_theta + rope_scaling
    tokens: int = 40
    kept_rows: int | None = None  # only the last rows are stored; None: all
    store: str = "f32"  # f32, bf16, f16 or mixed
    shards: int = 1
    extra_tensors: bool = False  # a stray lm_head and rotary_emb.inv_freq, which a loader must drop
    golden_config: dict = dataclasses.field(default_factory=dict)  # keys that only the reference run gets
    generation_config: dict | None = None


def base(model_type: str = "llama", **changes) -> dict:
    """R1 of models.md section 6.2, with every key that transformers 4 files usually carry."""
    architectures = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3"}
    config = {
        "architectures": [architectures[model_type] + "ForCausalLM"],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 160,
        "vocab_size": 97,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def small(model_type: str = "llama", **changes) -> dict:
    """Two layers, E 48, D 12, F 56: for cases about something else than the sizes."""
    shape = {"num_hidden_layers": 2, "hidden_size": 48, "head_dim": 12, "intermediate_size": 56}
    return base(model_type, **(shape | changes))


def block_cases() -> list[Case]:
    """Heads, biases, tying, widths."""
    cases = [
        Case("llama_tied", base(tie_word_embeddings=True)),
        Case("llama_untied", base()),
        Case("llama_attention_bias", small(attention_bias=True)),
        Case("llama_mlp_bias", small(mlp_bias=True, tie_word_embeddings=True)),
        Case("llama_all_bias", small(attention_bias=True, mlp_bias=True)),
        Case("llama_head_wide", small(head_dim=32)),
        Case("llama_head_narrow", small(head_dim=8)),
        Case("llama_head_odd", small(head_dim=20, num_key_value_heads=1)),
        Case("llama_gqa_1", small(num_key_value_heads=4)),
        Case("llama_gqa_4", small(num_key_value_heads=1)),
        Case("llama_gqa_8", small(num_attention_heads=8, num_key_value_heads=1)),
        Case(
            "llama_gqa_3",
            small(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, head_dim=8, tie_word_embeddings=True),
        ),
        Case(
            "llama_widths_80_136",
            small(
                hidden_size=80,
                num_attention_heads=5,
                num_key_value_heads=1,
                head_dim=16,
                intermediate_size=136,
                vocab_size=101,
            ),
        ),
        Case(
            "llama_widths_72_100",
            small(
                hidden_size=72,
                num_attention_heads=6,
                num_key_value_heads=3,
                head_dim=12,
                intermediate_size=100,
                vocab_size=89,
                tie_word_embeddings=True,
            ),
        ),
        # Only the keys that have no default: head_dim, num_key_value_heads, RoPE and the rest are left to the reader.
        Case(
            "llama_minimal_config",
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 80,
                "vocab_size": 97,
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 512,
            },
        ),
        # Nulls as transformers writes them.
        Case("llama_null_keys", small(head_dim=None, rope_scaling=None, sliding_window=None, pad_token_id=None)),
        # No tie key and no lm_head tensor: tied (models.md section 1.2, point 5).
        Case(
            "llama_tied_by_absence", small(tie_word_embeddings=...), golden_config={"tie_word_embeddings": True}
        ),
        # Tied with an lm_head tensor of other values, and an old rotary buffer: both are dropped.
        Case("llama_stray_tensors", small(tie_word_embeddings=True), extra_tensors=True),
        Case("llama_sharded", small(), shards=3),
        Case("llama_bf16", small(torch_dtype="bfloat16"), store="bf16"),
        Case("llama_f16", small(torch_dtype="float16", tie_word_embeddings=True), store="f16"),
        Case("llama_mixed_dtypes", small(attention_bias=True), store="mixed"),
        Case("llama_one_token", small(), tokens=1),
    ]
    return cases


def family_cases() -> list[Case]:
    """The other families of the graph (models.md section 2.4) and the shape of MiniCPM5."""
    smollm3 = {"tie_word_embeddings": True, "pad_token_id": None, "hidden_size": 32, "num_attention_heads": 2}
    smollm3 |= {"num_key_value_heads": 1, "intermediate_size": 48, "head_dim": ..., "rms_norm_eps": 1e-6}
    qwen = {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1, "rms_norm_eps": 1e-6}
    qwen |= {"rope_theta": 1000000.0}
    return [
        Case(
            "minicpm5",
            base(
                num_attention_heads=8,
                num_key_value_heads=1,
                intermediate_size=144,
                rms_norm_eps=1e-6,
                rope_theta=5000000.0,
                bos_token_id=0,
                eos_token_id=...,
                num_hidden_layers=2,
            ),
            generation_config={"bos_token_id": 0, "eos_token_id": [1, 93], "temperature": 0.9, "top_p": 0.95},
        ),
        Case("smollm3_list", small("smollm3", **smollm3, num_hidden_layers=4, no_rope_layers=[1, 0, 0, 1])),
        Case("smollm3_default_interval", small("smollm3", **smollm3, num_hidden_layers=4)),
        Case("smollm3_interval_2", small("smollm3", **smollm3, num_hidden_layers=3, no_rope_layer_interval=2)),
        Case(
            "smollm3_bias",
            small("smollm3", **smollm3, attention_bias=True, mlp_bias=True, no_rope_layers=[0, 1]),
        ),
        Case("qwen2_tied", small("qwen2", **qwen, head_dim=..., tie_word_embeddings=True)),
        Case("qwen2_untied", small("qwen2", **(qwen | {"sliding_window": None}), head_dim=...)),
        Case("qwen3", small("qwen3", **qwen, attention_bias=False)),
        Case(
            "qwen3_bias_head_wide",
            small("qwen3", **qwen, head_dim=24, attention_bias=True, tie_word_embeddings=True),
        ),
        Case("mistral", small("mistral", sliding_window=None, rope_theta=1000000.0)),
    ]


def rope_config(parameters: dict, theta: float, tokens_limit: int, **extra) -> tuple[dict, dict]:
    """(config.json in the rope_parameters spelling, config_legacy.json with rope_theta and rope_scaling)."""
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    shape |= {"intermediate_size": 48, "max_position_embeddings": tokens_limit, "tie_word_embeddings": True}
    new = small(rope_theta=..., rope_parameters={"rope_theta": theta} | parameters, **shape, **extra)
    kind = parameters["rope_type"]
    scaling = {"type": kind} | {key: value for key, value in parameters.items() if key != "rope_type"}
    legacy = small(rope_theta=theta, rope_scaling=None if kind == "default" else scaling, **shape, **extra)
    return new, legacy


def longrope_factors(width: int) -> tuple[list[float], list[float]]:
    """(short, long): growing divisors as published files have them."""
    short = [round(1.0 + 0.02 * i, 4) for i in range(width)]
    long = [round(1.05 * 1.35**i, 4) for i in range(width)]
    return short, long


# name: (rope parameters without theta, theta, max_position_embeddings). Head width 32, sequences of 40 tokens.
SHORT, LONG = longrope_factors(16)
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
ROPE_KINDS = {
    "rope_default_5e5": ({"rope_type": "default"}, 500000.0, 2048),
    "rope_linear": ({"rope_type": "linear", "factor": 4.0}, 10000.0, 2048),
    "rope_dynamic_inside": ({"rope_type": "dynamic", "factor": 4.0}, 10000.0, 64),
    "rope_dynamic_beyond": ({"rope_type": "dynamic", "factor": 4.0}, 10000.0, 16),
    "rope_llama3": (LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 64}, 10000.0, 512),
    "rope_llama3_f32": (LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 32}, 500000.0, 1024),
    "rope_yarn": (YARN, 10000.0, 256),
    "rope_yarn_mscale": (YARN | {"mscale": 1.2, "mscale_all_dim": 0.8}, 10000.0, 256),
    "rope_yarn_mscale_alone": (YARN | {"mscale": 0.7}, 10000.0, 256),
    "rope_yarn_mscale_zero": (YARN | {"mscale": 0.7, "mscale_all_dim": 0.0}, 10000.0, 256),
    "rope_yarn_attention_factor": (YARN | {"attention_factor": 0.85, "mscale": 1.2, "mscale_all_dim": 0.8}, 1e4, 256),
    "rope_yarn_no_truncate": (YARN | {"truncate": False}, 10000.0, 256),
    "rope_yarn_betas": (YARN | {"beta_fast": 4.0, "beta_slow": 0.25}, 10000.0, 256),
    "rope_yarn_one_band": (YARN | {"original_max_position_embeddings": 6}, 10000.0, 64),
    "rope_longrope_short": (LONGROPE | {"original_max_position_embeddings": 64}, 10000.0, 256),
    "rope_longrope_long": (LONGROPE | {"original_max_position_embeddings": 16}, 10000.0, 64),
    "rope_longrope_attention_factor": (
        LONGROPE | {"original_max_position_embeddings": 16, "attention_factor": 1.3},
        10000.0,
        64,
    ),
    "rope_longrope_factor_alone": (LONGROPE | {"factor": 4.0}, 10000.0, 64),
}


def rope_cases() -> list[Case]:
    cases = []
    for name, (parameters, theta, limit) in ROPE_KINDS.items():
        config, legacy = rope_config(parameters, theta, limit)
        cases.append(Case(name, config, legacy))
    # As Phi-3 files have it: original_max_position_embeddings beside rope_scaling, not inside.
    config, legacy = rope_config(LONGROPE | {"original_max_position_embeddings": 16}, 10000.0, 64)
    legacy["original_max_position_embeddings"] = legacy["rope_scaling"].pop("original_max_position_embeddings")
    cases.append(Case("rope_longrope_outer_limit", config, legacy))
    # Far positions.
    config, legacy = rope_config({"rope_type": "default"}, 10000.0, 8192)
    cases.append(Case("long_600", config, legacy, tokens=600, kept_rows=4))
    cases.append(Case("long_5000", config, legacy, tokens=5000, kept_rows=4))
    config, legacy = rope_config(LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 256}, 10000.0, 2048)
    cases.append(Case("long_600_llama3", config, legacy, tokens=600, kept_rows=4))
    config, legacy = rope_config(YARN | {"original_max_position_embeddings": 256}, 10000.0, 1024)
    cases.append(Case("long_600_yarn", config, legacy, tokens=600, kept_rows=4))
    return cases


def all_cases() -> list[Case]:
    cases = block_cases() + family_cases() + rope_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert all(math.gcd(case.config["hidden_size"], 4) == 4 for case in cases)
    return cases
