"""Reads Granite: Llama with factors at the embedding, at the scores, of what each sublayer adds, and of the logits.

IBM 2024, "Granite 3.0 language models".
"""

from model.checkpoint.families.family import Common, Family
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.heads import grouped_heads
from model.checkpoint.families.llama import TABLE, read_like_llama
from model.config import ModelConfig


def _read(hf: Fields, common: Common) -> ModelConfig:
    return read_like_llama(
        hf,
        common,
        grouped_heads(hf),
        hf.size("max_position_embeddings", 2048),
        mlp_bias=hf.flag("mlp_bias", False),
        embedding_scale=hf.number("embedding_multiplier", 1.0),
        attention_scale=hf.number("attention_multiplier", 1.0),
        residual_scale=hf.number("residual_multiplier", 1.0),
        logit_scale=1 / hf.number("logits_scaling", 1.0),
    )


GRANITE = Family("granite", ("GraniteForCausalLM",), ("granite",), _read, TABLE)
