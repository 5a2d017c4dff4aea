"""Reads GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners"), GPT-NeoX and Pythia
(attention and mlp in parallel, a part of each head rotated; Black et al. 2022, arXiv:2204.06745), and OPT (Zhang et al.
2022, arXiv:2205.01068; OPT-350m norms after each sublayer, and has narrower embeddings).
"""

import re

from lightwell.model.checkpoint.families.family import Common, Family, decoders
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.output_heads import SCORE_ROWS
from lightwell.model.checkpoint.families.rotary import read_rope
from lightwell.model.checkpoint.families.sizes import equal_heads, read_sizes
from lightwell.model.checkpoint.families.weight_table import UNTIED, WeightMap, WeightRow, linear, norm, separate_qkv
from lightwell.model.config import ModelConfig

_GPT2_BLOCK = "transformer.h.{i}"
_GPT2_TABLE = WeightMap(
    rows=(
        *linear("embed", "transformer.wte", "vocab d"),
        *linear("pos_embed", "transformer.wpe", "positions d"),
        *norm("layers.{i}.attn_norm", f"{_GPT2_BLOCK}.ln_1", bias=True),
        # Matrices are [in, out] (Conv1D).
        *linear("layers.{i}.qkv", f"{_GPT2_BLOCK}.attn.c_attn", "d qkv", bias=True, arrange="transpose"),
        *linear("layers.{i}.attn_out", f"{_GPT2_BLOCK}.attn.c_proj", "q d", bias=True, arrange="transpose"),
        *norm("layers.{i}.mlp_norm", f"{_GPT2_BLOCK}.ln_2", bias=True),
        *linear("layers.{i}.up", f"{_GPT2_BLOCK}.mlp.c_fc", "d ff", bias=True, arrange="transpose"),
        *linear("layers.{i}.down", f"{_GPT2_BLOCK}.mlp.c_proj", "ff d", bias=True, arrange="transpose"),
        *norm("final_norm", "transformer.ln_f", bias=True),
        *linear("head", "lm_head", "vocab d", when=UNTIED),
        *SCORE_ROWS,
    ),
    prefixes=("transformer.",),
    # The causal mask and its fill value, saved as buffers by transformers before 4.30.
    ignored=re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
)


def _read_gpt2(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(
        hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer", intermediate_size="n_inner",
        max_position_embeddings="n_positions", hidden_act="activation_function",
    ).with_defaults(
        vocab_size=50257, hidden_size=768, num_attention_heads=12, num_hidden_layers=12, max_position_embeddings=1024,
        hidden_act="gelu_new", tie_word_embeddings=True,
    )  # fmt: skip
    sizes = read_sizes(hf.with_defaults(intermediate_size=4 * hf.size("hidden_size")), equal_heads(hf))
    if not hf.flag("scale_attn_weights", True):
        sizes["attention_scale"] = 1.0
    # Softmax is in float32 for every file. A scale that differs by layer and cross-attention are not built.
    hf.only("scale_attn_by_inverse_layer_idx", False)
    hf.only("add_cross_attention", False)
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        learned_positions=True,
    )


GPT2 = Family("gpt2", ("GPT2LMHeadModel", "GPT2ForSequenceClassification"), _read_gpt2, _GPT2_TABLE)


_NEOX_BLOCK = "gpt_neox.layers.{i}"
_NEOX_TABLE = WeightMap(
    rows=(
        *linear("embed", "gpt_neox.embed_in", "vocab d"),
        *norm("layers.{i}.attn_norm", f"{_NEOX_BLOCK}.input_layernorm", bias=True),
        *linear(
            "layers.{i}.qkv",
            f"{_NEOX_BLOCK}.attention.query_key_value",
            "qkv d",
            bias="attention_bias",
            arrange="heads first",
        ),
        *linear("layers.{i}.attn_out", f"{_NEOX_BLOCK}.attention.dense", "d q", bias="attention_out_bias"),
        *norm("layers.{i}.mlp_norm", f"{_NEOX_BLOCK}.post_attention_layernorm", bias=True),
        *linear("layers.{i}.up", f"{_NEOX_BLOCK}.mlp.dense_h_to_4h", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_NEOX_BLOCK}.mlp.dense_4h_to_h", "d ff", bias=True),
        *norm("final_norm", "gpt_neox.final_layer_norm", bias=True),
        WeightRow("head.weight", ("embed_out.weight|lm_head.weight",), ("vocab d",), UNTIED),
        *SCORE_ROWS,
    ),
    prefixes=("gpt_neox.",),
    # The causal mask, its fill value and the frequencies, saved as buffers by transformers before 4.32.
    ignored=re.compile(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)"),
    tied_heads=("embed_out.weight", "lm_head.weight"),
)


def _read_neox(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(
        rope_theta=("rope_theta", "rotary_emb_base"), partial_rotary_factor=("partial_rotary_factor", "rotary_pct")
    ).with_defaults(max_position_embeddings=2048, hidden_act="gelu", partial_rotary_factor=0.25)
    sizes, bias = read_sizes(hf, equal_heads(hf)), hf.flag("attention_bias", True)
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=hf.number("layer_norm_eps", 1e-5),
        parallel_blocks=hf.flag("use_parallel_residual", True),
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=True,
        rope=read_rope(hf, sizes["head_dim"], sizes["max_model_len"]),
    )


GPT_NEOX = Family("gpt_neox", decoders("GPTNeoX"), _read_neox, _NEOX_TABLE)


_TOP, _OPT_BLOCK = "model.decoder", "model.decoder.layers.{i}"
_OPT_TABLE = WeightMap(
    rows=(
        *linear("embed", f"{_TOP}.embed_tokens", "vocab embedding"),
        *linear("embed_in", f"{_TOP}.project_in", "d embedding", when="embedding_size"),
        *linear("pos_embed", f"{_TOP}.embed_positions", "positions d"),
        *norm("layers.{i}.attn_norm", f"{_OPT_BLOCK}.self_attn_layer_norm", bias=True),
        *separate_qkv(f"{_OPT_BLOCK}.self_attn.*_proj", bias="attention_bias"),
        *linear("layers.{i}.attn_out", f"{_OPT_BLOCK}.self_attn.out_proj", "d q", bias="attention_out_bias"),
        *norm("layers.{i}.mlp_norm", f"{_OPT_BLOCK}.final_layer_norm", bias=True),
        *linear("layers.{i}.up", f"{_OPT_BLOCK}.fc1", "ff d", bias="mlp_bias"),
        *linear("layers.{i}.down", f"{_OPT_BLOCK}.fc2", "d ff", bias="mlp_bias"),
        *norm("final_norm", f"{_TOP}.final_layer_norm", bias=True, when="final_norm"),
        *linear("embed_out", f"{_TOP}.project_out", "embedding d", when="embedding_size"),
        *linear("head", "lm_head", "vocab embedding", when=UNTIED),
    ),
    prefixes=("model.decoder.", "decoder.", "model."),
    ignored=re.compile("version"),
)


def _read_opt(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(intermediate_size="ffn_dim", hidden_act="activation_function").with_defaults(
        max_position_embeddings=2048, hidden_act="relu", tie_word_embeddings=True
    )
    sizes = read_sizes(hf, equal_heads(hf))
    hf.only("layer_norm_elementwise_affine", True)
    before, bias = hf.flag("do_layer_norm_before", True), hf.flag("enable_bias", True)
    embedding_size = hf.size("word_embed_proj_dim", sizes["hidden_size"])
    return ModelConfig(
        **common,
        **sizes,
        norm="layernorm",
        norm_eps=1e-5,
        norm_placement="pre" if before else "post",
        final_norm=before and not hf.flag("_remove_final_layer_norm", False),
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=bias,
        learned_positions=True,
        position_offset=2,
        embedding_size=None if embedding_size == sizes["hidden_size"] else embedding_size,
    )


OPT = Family("opt", ("OPTForCausalLM",), _read_opt, _OPT_TABLE)
