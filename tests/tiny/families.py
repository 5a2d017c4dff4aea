"""The families, as transformers builds them: and their sizes."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import transformers as hf

from tests.tiny.jina_bert import JinaBertForMaskedLM
from tests.tiny.tokenizers import BERT_TEXT, DECODER_TEXT, FRAMED_TEXT, MARIAN_TEXT, T5_TEXT, VOCAB_SIZE, Text

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
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
GROUPED = {**_LLAMA, "num_key_value_heads": 2}
_EQUAL = {
    name: value for name, value in _LLAMA.items() if name not in ("num_key_value_heads", "head_dim", "rms_norm_eps")
}
"""Options of families that need a width divisible by the number of heads."""
_GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "n_inner": 100}
ALTERNATING = {
    "num_hidden_layers": 4, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_GEMMA = {**GROUPED, **ALTERNATING, "query_pre_attn_scalar": 20}
_BERT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": CONTEXT,
}  # fmt: skip
_DISTILBERT = {
    "vocab_size": VOCAB_SIZE, "dim": 48, "hidden_dim": 100, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCAB_SIZE, "d_model": 48, "d_kv": 16, "d_ff": 100, "num_layers": 2, "num_decoder_layers": 3,
    "num_heads": 4, "relative_attention_max_distance": 40, "n_positions": CONTEXT,
}  # fmt: skip
_BART = {
    "vocab_size": VOCAB_SIZE, "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 100, "decoder_ffn_dim": 72, "max_position_embeddings": CONTEXT,
    "scale_embedding": True,
}  # fmt: skip
_FRAME_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_PAD = {"pad_token_id": 1}


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
_MODERNBERT = {
    **_BERT,
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "local_attention": 12,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 16_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
}
PARTIAL = _rope("default", partial_rotary_factor=0.25)
PHI_LONG = _rope(
    "longrope",
    short_factor=_SHORT[:6],
    long_factor=_LONG[:6],
    original_max_position_embeddings=32,
    partial_rotary_factor=0.75,
)


def decoder(stem: str, options: dict[str, Any], **more: Any) -> Family:
    """Return a family of decoders by the stem of the names that transformers gives its classes."""
    config = f"{stem}TextConfig" if stem in ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5") else f"{stem}Config"
    return Family("decoder", getattr(hf, config), getattr(hf, f"{stem}ForCausalLM"), options, **more)


FAMILIES: dict[str, Family] = {
    "llama": decoder("Llama", _LLAMA, gain=1.35),
    "mistral": decoder("Mistral", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": decoder("Qwen2", GROUPED),
    "qwen3": decoder("Qwen3", GROUPED),
    "smollm3": decoder(
        "SmolLM3",
        {**GROUPED, **_PAD, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "granite": decoder(
        "Granite",
        {
            **{**GROUPED, "embedding_multiplier": 3.0, "attention_multiplier": 0.2},
            **{"residual_multiplier": 0.7, "logits_scaling": 5.0},
        },
    ),
    "gemma2": decoder(
        "Gemma2", {**_GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0}, norm_centre=0.0
    ),
    "gemma3": decoder("Gemma3", {**_GEMMA, **_TWO_ROPES}, norm_centre=0.0),
    "gemma4": decoder(
        "Gemma4",
        {
            **{**GROUPED, **ALTERNATING, "rms_norm_eps": 1e-6, "final_logit_softcapping": 3.0},
            **{"global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
            **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB_SIZE},
        },
    ),
    "gemma3n": decoder(
        "Gemma3n",
        {
            **{**GROUPED, **ALTERNATING, **_TWO_ROPES, "rms_norm_eps": 1e-6, "final_logit_softcapping": 3.0},
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
    "phi3": decoder("Phi3", {**GROUPED, **_PAD}),
    "olmo2": decoder("Olmo2", {**GROUPED, **_PAD}),
    "olmo3": decoder("Olmo3", {**GROUPED, **_TWO_ROPES, **_PAD, "sliding_window": WINDOW}),
    "gpt2": Family("decoder", hf.GPT2Config, hf.GPT2LMHeadModel, _GPT2, gain=2.0),
    "gpt_neox": decoder("GPTNeoX", {**_EQUAL, **PARTIAL, "num_attention_heads": 3}),
    "opt": decoder("OPT", {**{k: v for k, v in _EQUAL.items() if k != "intermediate_size"}, **_PAD, "ffn_dim": 100}),
    "bert": Family("encoder", hf.BertConfig, hf.BertForMaskedLM, _BERT, BERT_TEXT, _PAD, gain=2.0),
    "roberta": Family(
        "encoder",
        hf.RobertaConfig,
        hf.RobertaForMaskedLM,
        {**_BERT, "max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1, "hidden_act": "gelu_new"},
        FRAMED_TEXT,
        _FRAME_IDS,
        gain=2.0,
    ),
    "distilbert": Family("encoder", hf.DistilBertConfig, hf.DistilBertForMaskedLM, _DISTILBERT, BERT_TEXT, _PAD),
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
        _MODERNBERT,
        FRAMED_TEXT,
        {**_FRAME_IDS, "cls_token_id": 0, "sep_token_id": 2},
        gain=1.4,
        gain_of_values=0.9,
    ),
    "nomic_bert": Family("encoder", hf.NomicBertConfig, hf.NomicBertForMaskedLM, _BERT, BERT_TEXT, _PAD, gain=1.5),
    "jina_bert": Family(
        "encoder",
        hf.BertConfig,
        JinaBertForMaskedLM,
        # Six heads: their slopes are the slopes of four heads, and two of eight.
        {**_BERT, "num_attention_heads": 6, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
        BERT_TEXT,
        _PAD,
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
        {**_FRAME_IDS, "decoder_start_token_id": 2},
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
