"""The families, as transformers builds them: and their sizes."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import transformers as hf

from tests.tiny.jina_bert import JinaBertForMaskedLM
from tests.tiny.tokenizers import (
    BERT_TEXT,
    DECODER_TEXT,
    FRAMED_TEXT,
    MARIAN_TEXT,
    T5_TEXT,
    VOCAB_SIZE,
    Text,
)

CONTEXT = 128
WINDOW = 17
"""Tokens of a window, shorter than the prompts of the tests: a window is invisible on short ones."""


@dataclass(frozen=True)
class Family:
    """How to build a family's checkpoint with transformers."""

    kind: Literal["decoder", "encoder", "encoder-decoder"]
    config: Any
    network: Any
    options: dict[str, Any]
    text: Text = DECODER_TEXT
    special_ids: dict[str, Any] = field(default_factory=lambda: {"bos_token_id": 0, "eos_token_id": 1})
    gain: float = 1.5
    """Factor by which matrices amplify: enough for sharp patterns, but float32's own noise in them must stay under
    1e-5.
    """
    gain_of_values: float | None = None
    """Factor of the matrices except queries' and keys', if `gain` is too large for them. Attention adds nearly the same
    vector at every position, so a large factor would make all positions alike.
    """
    table: float = 0.5
    """Size of the entries of tables."""
    norm_centre: float = 1.0
    """Value around which the weights of norms are drawn."""

    @property
    def classifier(self) -> Any:
        """Return the class of transformers that labels an input, or None if there is none."""
        stem = re.sub("(ForCausalLM|LMHeadModel|ForMaskedLM)$", "", self.network.__name__)
        stem += "Text" if stem in ("Gemma3", "Qwen3_5") else ""
        return getattr(hf, f"{stem}ForSequenceClassification", None)

    @property
    def generation(self) -> dict[str, Any]:
        """Return the fields of generation_config.json."""
        ids = {"eos_token_id": [self.special_ids["eos_token_id"]]} if "eos_token_id" in self.special_ids else {}
        return {**self.special_ids, **ids}


_LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_GROUPED = {**_LLAMA, "num_key_value_heads": 2}
_EQUAL = {
    name: value for name, value in _LLAMA.items() if name not in ("num_key_value_heads", "head_dim", "rms_norm_eps")
}
"""Options of families that need a width divisible by the number of heads."""
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "n_inner": 100,
}
_ALTERNATING = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_GEMMA = {**_GROUPED, **_ALTERNATING, "query_pre_attn_scalar": 20}
_BERT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
_T5 = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 100,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_max_distance": 40,
    "n_positions": CONTEXT,
}
_BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 100,
    "decoder_ffn_dim": 72,
    "max_position_embeddings": CONTEXT,
    "scale_embedding": True,
}
_FRAME_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_START = {**_FRAME_IDS, "decoder_start_token_id": 2}


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


_SHORT, _LONG = [1.0 + i / 16 for i in range(8)], [2.0 + i for i in range(8)]
ROPE_VARIANTS: dict[str, dict[str, Any]] = {
    "linear": _rope("linear", factor=2.5),
    "dynamic": _rope("dynamic", factor=2.0),
    "llama3": _rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    "yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "longrope": _rope("longrope", short_factor=_SHORT, long_factor=_LONG, original_max_position_embeddings=32),
}
"""Options of each rope scaling, for head_dim 16 and a context of 128."""
_TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
}
PARTIAL = _rope("default", partial_rotary_factor=0.25)
PHI_LONG = _rope(
    "longrope",
    short_factor=_SHORT[:6],
    long_factor=_LONG[:6],
    original_max_position_embeddings=32,
    partial_rotary_factor=0.75,
)

FAMILIES: dict[str, Family] = {
    "llama": Family("decoder", hf.LlamaConfig, hf.LlamaForCausalLM, _LLAMA, gain=1.35),
    "mistral": Family("decoder", hf.MistralConfig, hf.MistralForCausalLM, {**_GROUPED, "sliding_window": WINDOW}),
    "qwen2": Family("decoder", hf.Qwen2Config, hf.Qwen2ForCausalLM, _GROUPED),
    "qwen3": Family("decoder", hf.Qwen3Config, hf.Qwen3ForCausalLM, _GROUPED),
    "smollm3": Family(
        "decoder",
        hf.SmolLM3Config,
        hf.SmolLM3ForCausalLM,
        {
            **_GROUPED,
            "pad_token_id": 1,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "granite": Family(
        "decoder",
        hf.GraniteConfig,
        hf.GraniteForCausalLM,
        {
            **_GROUPED,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 5.0,
        },
    ),
    "gemma2": Family(
        "decoder",
        hf.Gemma2Config,
        hf.Gemma2ForCausalLM,
        {**_GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0},
        norm_centre=0.0,
    ),
    "gemma3": Family("decoder", hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {**_GEMMA, **_TWO_ROPES}, norm_centre=0.0),
    "gemma4": Family(
        "decoder",
        hf.Gemma4TextConfig,
        hf.Gemma4ForCausalLM,
        {
            **{**_GROUPED, **_ALTERNATING, "rms_norm_eps": 1e-6, "final_logit_softcapping": 3.0},
            **{"global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
            **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB_SIZE},
        },
    ),
    "gemma3n": Family(
        "decoder",
        hf.Gemma3nTextConfig,
        hf.Gemma3nForCausalLM,
        {
            **{**_GROUPED, **_ALTERNATING, **_TWO_ROPES, "rms_norm_eps": 1e-6, "final_logit_softcapping": 3.0},
            **{"num_kv_shared_layers": 2, "laurel_rank": 6, "activation_sparsity_pattern": [0.7, 0.0, 0.4, 0.0]},
            **{"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB_SIZE // 2},
        },
    ),
    "embedding_gemma": Family(
        "encoder",
        hf.Gemma3TextConfig,
        hf.Gemma3TextModel,
        {
            **{**_GEMMA, **_TWO_ROPES},
            **{"use_bidirectional_attention": True, "sliding_window": 2 * WINDOW, "query_pre_attn_scalar": 6},
        },
        FRAMED_TEXT,
        _FRAME_IDS,
        norm_centre=0.0,
    ),
    "phi3": Family("decoder", hf.Phi3Config, hf.Phi3ForCausalLM, {**_GROUPED, "pad_token_id": 1}),
    "olmo2": Family("decoder", hf.Olmo2Config, hf.Olmo2ForCausalLM, {**_GROUPED, "pad_token_id": 1}),
    "olmo3": Family(
        "decoder",
        hf.Olmo3Config,
        hf.Olmo3ForCausalLM,
        {**_GROUPED, **_TWO_ROPES, "sliding_window": WINDOW, "pad_token_id": 1},
    ),
    "gpt2": Family("decoder", hf.GPT2Config, hf.GPT2LMHeadModel, _GPT2, gain=2.0),
    "gpt_neox": Family(
        "decoder", hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, {**_EQUAL, **PARTIAL, "num_attention_heads": 3}
    ),
    "opt": Family(
        "decoder",
        hf.OPTConfig,
        hf.OPTForCausalLM,
        {**{k: v for k, v in _EQUAL.items() if k != "intermediate_size"}, "ffn_dim": 100, "pad_token_id": 1},
    ),
    "bert": Family("encoder", hf.BertConfig, hf.BertForMaskedLM, _BERT, BERT_TEXT, {"pad_token_id": 1}, gain=2.0),
    "roberta": Family(
        "encoder",
        hf.RobertaConfig,
        hf.RobertaForMaskedLM,
        {**_BERT, "max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1, "hidden_act": "gelu_new"},
        FRAMED_TEXT,
        _FRAME_IDS,
        gain=2.0,
    ),
    "distilbert": Family(
        "encoder",
        hf.DistilBertConfig,
        hf.DistilBertForMaskedLM,
        {
            "vocab_size": VOCAB_SIZE,
            "dim": 48,
            "hidden_dim": 100,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": CONTEXT,
        },
        BERT_TEXT,
        {"pad_token_id": 1},
    ),
    "mpnet": Family(
        "encoder",
        hf.MPNetConfig,
        hf.MPNetForMaskedLM,
        {**_BERT, "max_position_embeddings": CONTEXT + 2},
        FRAMED_TEXT,
        _FRAME_IDS,
    ),
    "modernbert": Family(
        "encoder",
        hf.ModernBertConfig,
        hf.ModernBertForMaskedLM,
        {
            **_BERT,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "local_attention": 12,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 16_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
        FRAMED_TEXT,
        {**_FRAME_IDS, "cls_token_id": 0, "sep_token_id": 2},
        gain=1.4,
        gain_of_values=0.9,
    ),
    "nomic_bert": Family(
        "encoder", hf.NomicBertConfig, hf.NomicBertForMaskedLM, _BERT, BERT_TEXT, {"pad_token_id": 1}, gain=1.5
    ),
    "jina_bert": Family(
        "encoder",
        hf.BertConfig,
        JinaBertForMaskedLM,
        # Six heads: their slopes are the slopes of four heads, and two of eight.
        {**_BERT, "num_attention_heads": 6, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
        BERT_TEXT,
        {"pad_token_id": 1},
    ),
    "jina_embeddings_v3": Family(
        "encoder", hf.JinaEmbeddingsV3Config, hf.JinaEmbeddingsV3ForMaskedLM, _BERT, FRAMED_TEXT, _FRAME_IDS
    ),
    "t5": Family(
        "encoder-decoder",
        hf.T5Config,
        hf.T5ForConditionalGeneration,
        _T5,
        T5_TEXT,
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        gain=0.7,  # its scores are not divided by sqrt(d_head)
    ),
    "bart": Family(
        "encoder-decoder",
        hf.BartConfig,
        hf.BartForConditionalGeneration,
        _BART,
        FRAMED_TEXT,
        _START,
        gain=2.0,
        gain_of_values=1.0,
    ),
    "marian": Family(
        "encoder-decoder",
        hf.MarianConfig,
        hf.MarianMTModel,
        {**_BART, "decoder_vocab_size": VOCAB_SIZE, "activation_function": "swish"},
        MARIAN_TEXT,
        {**_FRAME_IDS, "decoder_start_token_id": 1},
        gain=2.0,
        gain_of_values=1.0,
        table=0.15,  # scaled by sqrt(d), and not normed
    ),
}
