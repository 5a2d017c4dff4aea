"""Options in config.json for unsupported families: refused by name."""

from pathlib import Path
from typing import Any

import pytest

from lightwell.model.checkpoint.folder import ModelLoadError
from tests.model.checkpoint.test_families import read, sizes_of

REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only False"),
    ("Gemma2ForCausalLM", {"sliding_window": None}, "sliding_window is None; a positive integer is expected"),
    ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, "a list of 6, each one of full_attention, sliding_att"),
    ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 10}, r"num_experts_per_tok is 10; at most num_experts \(9\) is ac"),
    ("Qwen3MoeForCausalLM", {"num_experts": 10**6}, "num_experts is 1000000; at most 100000 in all 6 layers"),
    ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv is 8.0; only None is supported"),
    ("GraniteMoeHybridForCausalLM", {"layer_types": ["mamba"] * 6}, "layer_types is .*; only attention layers"),
    ("GraniteMoeHybridForCausalLM", {"layer_types": None}, "layer_types is None; only attention layers are"),
    ("GraniteMoeHybridForCausalLM", {"position_embedding_type": "alibi"}, "is 'alibi'; rope, nope and null are supp"),
    ("GptOssForCausalLM", {"num_experts_per_tok": 10}, r"num_experts_per_tok is 10; at most num_local_experts \(9\)"),
    ("GptOssForCausalLM", {"sliding_window": None}, "sliding_window is None; a positive integer is expected"),
    ("Lfm2ForCausalLM", {"layer_types": ["conv"] * 6}, "at least one layer with full_attention is expected"),
    ("Lfm2ForCausalLM", {"layer_types": ["convolution"]}, "a list of 6, each 'full_attention' or 'conv', is expected"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 2]}, r"no_rope_layers is \[1, 2\]; a list of 6, each 1 .* or 0, is"),
    ("SmolLM3ForCausalLM", {"layer_types": ["sliding_attention"] * 6}, "sliding_attention needs use_sliding_window"),
    ("GraniteForCausalLM", {"residual_multiplier": 0}, "residual_multiplier is 0; a positive number is expected"),
    ("Olmo3ForCausalLM", {"rope_theta": 1e6}, "rope_theta is 1000000.0; only 500000.0 is supported"),
    ("OPTForCausalLM", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False; only True"),
    ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; only 'abs"),
    ("BertModel", {"is_decoder": True}, "is_decoder is True; only False"),
    ("MPNetModel", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16; only 32"),
    ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'; supported"),
    ("BartForConditionalGeneration", {"normalize_before": True}, "normalize_before is True; only False"),
    ("BartForConditionalGeneration", {"encoder_attention_heads": 5}, "d_model is 32; a multiple of encoder_attention"),
    ("MarianMTModel", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False; only T"),
    ("MarianMTModel", {"decoder_vocab_size": 60}, "decoder_vocab_size is 60; only vocab_size"),
    ("MarianMTModel", {"bad_words_ids": [3]}, r"bad_words_ids is \[3\]; a list of lists of token ids"),
    ("JinaEmbeddingsV3Model", {"head_dim": 6}, "head_dim is 6; only 8 is supported"),
    ("NomicBertModel", {"prenorm": True}, "prenorm is True; only False is supported"),
    ("NomicBertModel", {"num_experts": 8}, "num_experts is 8; only .* is supported"),
    ("NomicBertModel", {"activation_function": "geglu"}, "activation_function is 'geglu'; only .* is supported"),
    ("NomicBertModel", {"head_dim": 16}, "head_dim is 16; only 8 is supported"),
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "_layer_idx is True; only False is supported"),
    ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention is True; only False is supported"),
    ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only False is"),
    ("Gemma3nForCausalLM", {"altup_num_inputs": 3}, "altup_num_inputs is 3; only 4 is supported"),
    ("Gemma3nForCausalLM", {"altup_active_idx": 1}, "altup_active_idx is 1; only 0 is supported"),
    ("Gemma3nForCausalLM", {"intermediate_size": [100]}, "a positive integer, or a list of 6, is expected"),
    ("Gemma3nForCausalLM", {"activation_sparsity_pattern": [0.5] * 5 + [1.0]}, "a list of 6 numbers from 0 to below 1"),
    ("Gemma3nForCausalLM", {"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3; a number that leaves"),
    ("Qwen3_5ForCausalLM", {"layer_types": ["linear_attention"] * 6}, "at least one layer with full_attention is"),
    ("Qwen3_5ForCausalLM", {"layer_types": ["full_attention"]}, "a list of 6, each one of linear_attention, full_atte"),
    ("Qwen3_5ForCausalLM", {"linear_num_key_heads": 3}, r"a divisor of linear_num_value_heads \(32\) is expected"),
    ("Qwen3_5ForCausalLM", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ("GPTNeoXForCausalLM", {"rotary_pct": 0.01}, "an even number of the head's 8 dimensions must be rotated, not 0"),
)


@pytest.mark.parametrize(("architecture", "change", "message"), REFUSED)
def test_what_would_change_the_network_and_is_not_built_is_refused_by_name(
    tmp_path: Path, architecture: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        read(tmp_path, {**sizes_of(architecture), "architectures": [architecture], **change})
    assert "\n" not in str(caught.value)


JINA: dict[str, Any] = {
    **{"architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": 50, "hidden_size": 32},
    **{"num_attention_heads": 4, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
}
"""A Jina BERT of version 2; transformers has no code for it."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'; only 'alibi' is supported"),
        ({"feed_forward_type": None}, "feed_forward_type is 'original'; supported are geglu, reglu"),
        (
            {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
            "auto_map is .*; networks of jina-bert-v2-qk-post-norm, which norm queries and keys, are not supported",
        ),
        ({"architectures": ["BertModel"]}, "position_embedding_type is 'alibi'; only 'absolute' is supported"),
    ],
)
def test_a_jina_bert_of_another_code_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = read(tmp_path, {**JINA, "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.X"}})
    assert (config.alibi, config.gated_mlp, config.activation, config.num_layers) == (True, True, "gelu", 12)
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, {**JINA, **change})
