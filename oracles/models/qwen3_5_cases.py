"""The tiny random Qwen3.5 models, as data (R4 and R5 of models.md section 6.2). tiny_qwen3_5.py turns each into
goldens/qwen3_5/<name>/.

E 64, N 4, H 4, K 2, D 32, R 8, F 96, Hk 2, Dk = Dv = 16, V 131.
"""

import dataclasses

FULL, LINEAR = "full_attention", "linear_attention"


@dataclasses.dataclass
class Case:
    name: str
    changes: dict = dataclasses.field(default_factory=dict)  # of the text config
    wrapped: bool = False  # in text_config, tensors named model.language_model.*, beside a vision tower
    store: str = "bf16"  # f32 or bf16 (A_log and dt_bias too)
    mtp: bool = False  # with the 15 tensors of the head
    fused: bool = False  # in_proj_qkvz and in_proj_ba, as Qwen3-Next files have them
    shards: int = 1
    extremes: bool = False  # decay that underflows, beta at 0 and 1, a key head of zeros
    mlx: bool = False  # written by mlx-lm, whose float32 run is the reference
    bits: int | None = None  # mlx: quantized, groups of 32


def text_config(**changes) -> dict:
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 96,
        "vocab_size": 131,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "full_attention_interval": 4,
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


MROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
MROPE |= {"mrope_interleaved": True}


def all_cases() -> list[Case]:
    head = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    every_second = {"full_attention_interval": 2, "layer_types": [LINEAR, FULL, LINEAR, FULL]}
    return [
        Case("hv1", {"linear_num_value_heads": 2}),
        Case("hv2_wrapped", {"rope_parameters": MROPE}, wrapped=True, shards=2),
        Case("hv4_tied", {"linear_num_value_heads": 8, "tie_word_embeddings": True}),
        # Dk unlike Dv, a taller window, layer types from the interval alone, R 16.
        Case(
            "uneven",
            every_second
            | {"linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3, "layer_types": ...}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
            store="f32",
        ),
        Case("extremes", store="f32", extremes=True),
        Case("fused", fused=True),
        Case("mtp_pre_norm", head | {"mtp_hidden_tap": "pre_norm"}, mtp=True),
        # Without mtp_hidden_tap: post_norm (models.md section 4.2).
        Case("mtp_post_norm_wrapped", head | {"tie_word_embeddings": True}, mtp=True, wrapped=True),
        Case("mlx", every_second, store="f32", mlx=True),
        Case("mlx_b4_wrapped", {"tie_word_embeddings": True}, store="bf16", mlx=True, wrapped=True, bits=4),
    ]
