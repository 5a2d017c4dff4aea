"""Reads gpt-oss: windows in every other layer, a sink for each head, and experts with biases and a clamped gate.

OpenAI 2025, arXiv:2508.10925. Its experts are published in MXFP4.
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.llama import ATTENTION_ROWS, llama_table, read_like_llama
from model.checkpoint.families.sizes import read_experts
from model.checkpoint.families.weight_table import StackedTensor, WeightRow, linear
from model.config import ClampedGate, ModelConfig

_BLOCK = "model.layers.{i}"
_EXPERT = f"{_BLOCK}.mlp.experts.{{e}}"
_PARTS = {"": "weight", "_bias": "bias", "_blocks": "weight_blocks", "_scales": "weight_scales"}
"""Endings of the names of tensors that hold all experts, and the names of one expert's parts."""
_TABLE = llama_table(
    attention=(
        *ATTENTION_ROWS,
        WeightRow("layers.{i}.sinks.weight", (f"{_BLOCK}.self_attn.sinks",), ("heads",)),
    ),
    feedforward=(
        *linear("layers.{i}.router", f"{_BLOCK}.mlp.router", "experts d", bias=True),
        *linear(
            "layers.{i}.experts.{e}.gate_up", f"{_EXPERT}.gate_up", "2expert_ff d", bias=True, arrange="every other"
        ),
        *linear("layers.{i}.experts.{e}.down", f"{_EXPERT}.down", "d expert_ff", bias=True),
    ),
    stacked=tuple(
        StackedTensor(f"mlp.experts.{name}_proj{part}", f"mlp.experts.{{e}}.{name}.{one}", is_transposed=not part)
        for name in ("gate_up", "down")
        for part, one in _PARTS.items()
    ),
)
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotary embedding of files without one."""


def _read(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(num_experts="num_local_experts").with_defaults(
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        attention_bias=True,
        rope_theta=150000.0,
        rope_scaling=_ROPE,
        num_experts=128,
        num_experts_per_tok=4,
    )
    return read_like_llama(
        hf,
        common,
        activation="silu",  # of the clamped gate
        clamped_gate=ClampedGate(hf.number("swiglu_limit", 7.0), hf.number("swiglu_alpha", 1.702)),
        attention_sinks=True,
        sliding_windows=hf.windows([i % 2 == 0 for i in range(hf.size("num_hidden_layers"))], 128),
        experts=read_experts(hf, intermediate_size=hf.size("intermediate_size", 2880), normalized=True),
    )


GPT_OSS = Family("gpt_oss", ("GptOssForCausalLM", "GptOssForSequenceClassification"), ("gpt_oss",), _read, _TABLE)
