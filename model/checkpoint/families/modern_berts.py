"""Reads encoders built on BERT with other positions.

ModernBERT (Warner et al. 2024, arXiv:2412.13663): rotary positions, gated mlps, and a window in two layers of three.
Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613): rotary positions, gated mlps and no biases outside its norms; its
config.json has the names of GPT-2, or of transformers, where the head has biases. Jina's version 2 (Guenther et
al. 2023, arXiv:2310.19923): symmetric ALiBi in place of a position table, and gated mlps; its code is in no release of
transformers and is not run. Jina's version 3 (Sturua et al. 2024, arXiv:2409.10173): an XLM-RoBERTa with rotary
positions, as transformers writes it.
"""

import re

from lightwell.model.checkpoint.families.bert import (
    ATTENTION_ROWS,
    EMBED_ROWS,
    HEADS,
    LABELS,
    LM_HEAD,
    POOLED,
    PREDICTIONS,
    TASKS,
    named,
    read_like_bert,
)
from lightwell.model.checkpoint.families.family import Common, Family
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.output_heads import (
    classifier_rows,
    first_token,
    masked_head_fields,
    masked_head_rows,
    names_masked_head,
    read_classifier,
)
from lightwell.model.checkpoint.families.rotary import read_local_and_global_rope, read_rope
from lightwell.model.checkpoint.families.sizes import equal_heads
from lightwell.model.checkpoint.families.weight_table import WeightMap, gated_mlp, in_layers, linear, norm
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import Activation, ClassifierConfig, ModelConfig

_MODERNBERT_BLOCK = "model.layers.{i}"
_MODERNBERT_TABLE = WeightMap(
    rows=(
        *linear("embed", "model.embeddings.tok_embeddings", "vocab d"),
        *norm("embed_norm", "model.embeddings.norm", bias="norm_bias"),
        *in_layers(
            lambda config, layer: layer > 0,
            *norm("layers.{i}.attn_norm", f"{_MODERNBERT_BLOCK}.attn_norm", bias="norm_bias"),
        ),
        *linear("layers.{i}.qkv", f"{_MODERNBERT_BLOCK}.attn.Wqkv", "qkv d", bias="attention_bias"),
        *linear("layers.{i}.attn_out", f"{_MODERNBERT_BLOCK}.attn.Wo", "d q", bias="attention_out_bias"),
        *norm("layers.{i}.mlp_norm", f"{_MODERNBERT_BLOCK}.mlp_norm", bias="norm_bias"),
        # The activated half of mlp.Wi comes first.
        *gated_mlp("layers.{i}", f"{_MODERNBERT_BLOCK}.mlp.Wi", f"{_MODERNBERT_BLOCK}.mlp.Wo", bias="mlp_bias"),
        *norm("final_norm", "model.final_norm", bias="norm_bias"),
        *masked_head_rows("head.dense", "head.norm", "decoder", "decoder.bias"),
        *classifier_rows("classifier", "head.dense", "head.norm"),
    ),
    prefixes=("model.",),
    ignored=re.compile(r"(head|decoder|classifier|drop)\..*"),
    tied_heads=("decoder.weight",),
)


def _read_modernbert(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_spellings(hidden_act="hidden_activation", layer_norm_eps="norm_eps")
    hf = hf.with_defaults(
        vocab_size=50368, hidden_size=768, num_attention_heads=12, num_hidden_layers=22, intermediate_size=1152,
        max_position_embeddings=8192, layer_norm_eps=1e-5, hidden_act="gelu",
    )  # fmt: skip
    every = hf.size("global_attn_every_n_layers", 3)
    has_window = hf.windowed_layers([i % every > 0 for i in range(hf.size("num_hidden_layers"))])
    window = hf.size("local_attention", 128) // 2 + 1  # as many tokens on either side, and the query's own
    global_theta = hf.number("global_rope_theta", 160_000.0)
    local_theta = hf.nullable_number("local_rope_theta", 10_000.0) or global_theta
    thetas = {"full_attention": global_theta, "sliding_attention": local_theta}
    head_dim, length = equal_heads(hf)["head_dim"], hf.size("max_position_embeddings")
    rope, local_rope = read_local_and_global_rope(hf, head_dim, length, thetas, scale_both=True)
    activation = hf.activation("classifier_activation", "gelu") if names_masked_head(common) else "gelu"
    transform_bias, head_bias = hf.flag("classifier_bias", False), hf.flag("decoder_bias", True)
    bias = hf.flag("attention_bias", False)
    return read_like_bert(
        hf,
        common,
        **masked_head_fields(hf, common, activation, transform_bias=transform_bias, bias=head_bias),
        norm_placement="pre",
        norm_bias=hf.flag("norm_bias", False),
        final_norm=True,
        first_attention_norm=False,
        gated_mlp=True,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=hf.flag("mlp_bias", False),
        learned_positions=False,
        rope=rope,
        local_rope=local_rope,
        sliding_windows=tuple(window if windowed else None for windowed in has_window),
    )


def _read_classifier(hf: Fields) -> ClassifierConfig:
    pooling = hf.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise hf.refuse("classifier_pooling", "cls and mean are supported")
    return read_classifier(
        hf,
        state=pooling,
        dense=hf.activation("classifier_activation", "gelu"),
        dense_bias=hf.flag("classifier_bias", False),
        norm=True,
        norm_bias=hf.flag("norm_bias", False),
    )


MODERNBERT = Family(
    "modernbert", named("ModernBert", *TASKS), _read_modernbert, _MODERNBERT_TABLE, read_classifier=_read_classifier
)


_NOMIC_BLOCK = "encoder.layers.{i}"
_NOMIC_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("embed_norm", "emb_ln", bias=True),
        *linear("layers.{i}.qkv", f"{_NOMIC_BLOCK}.attn.Wqkv", "qkv d"),
        *linear("layers.{i}.attn_out", f"{_NOMIC_BLOCK}.attn.out_proj", "d q"),
        *norm("layers.{i}.attn_norm", f"{_NOMIC_BLOCK}.norm1", bias=True),
        *gated_mlp("layers.{i}", (f"{_NOMIC_BLOCK}.mlp.fc12", f"{_NOMIC_BLOCK}.mlp.fc11"), f"{_NOMIC_BLOCK}.mlp.fc2"),
        *norm("layers.{i}.mlp_norm", f"{_NOMIC_BLOCK}.norm2", bias=True),
        *masked_head_rows(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.layer_norm",
            "cls.predictions.decoder",
            "cls.predictions.decoder.bias|cls.predictions.bias",
        ),
        *POOLED,
    ),
    prefixes=("nomic_bert.", "bert."),
    ignored=re.compile(HEADS),
    tied_heads=("cls.predictions.decoder.weight",),
)
_NOMIC_SPELLINGS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "intermediate_size": ("n_inner", "intermediate_size"),
    "layer_norm_eps": ("layer_norm_epsilon", "layer_norm_eps"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
}
"""Names of fields in the first checkpoints and in transformers."""
_NOMIC_OPTIONS = {
    "activation_function": "swiglu", "causal": False, "prenorm": False, "parallel_block": False, "qkv_proj_bias": False,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False, "num_experts": 0, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "use_rms_norm": False,
}  # fmt: skip
"""Options of the first checkpoints, and the only supported value of each."""


def _read_nomic(hf: Fields, common: Common) -> ModelConfig:
    for option, value in _NOMIC_OPTIONS.items():
        hf.only(option, value)
    is_first = "n_embd" in hf.values
    hf = hf.with_spellings(**_NOMIC_SPELLINGS).with_defaults(
        vocab_size=30528, hidden_size=768, num_attention_heads=12, hidden_act="silu", rope_theta=1000.0
    )
    head_dim = equal_heads(hf)["head_dim"]
    hf.only("head_dim", head_dim)
    # A rotary embedding that would be stretched beyond the trained length is left as it is up to there.
    is_stretched = hf.optional_number("rotary_scaling_factor") is not None
    length = hf.size("max_trained_positions" if is_stretched else "n_positions", 2048)
    max_model_len = hf.size("max_position_embeddings", length)
    activation = hf.activation("hidden_act")
    return read_like_bert(
        hf,
        common,
        **masked_head_fields(hf, common, activation, transform_bias=not is_first, bias=not is_first),
        max_model_len=max_model_len,
        gated_mlp=True,
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        learned_positions=False,
        rope=read_rope(hf, head_dim, max_model_len),
        num_token_types=hf.size("type_vocab_size", 2),
    )


NOMIC_BERT = Family(
    "nomic_bert",
    named("NomicBert", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"),
    _read_nomic,
    _NOMIC_TABLE,
    read_classifier=first_token("tanh"),
)


_JINA_2_BLOCK = "encoder.layer.{i}"
_JINA_2_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("embed_norm", "embeddings.LayerNorm", bias=True),
        *ATTENTION_ROWS,
        *linear("layers.{i}.gate_up", f"{_JINA_2_BLOCK}.mlp.gated_layers", "2ff d"),
        *linear("layers.{i}.down", f"{_JINA_2_BLOCK}.mlp.wo", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_JINA_2_BLOCK}.mlp.layernorm", bias=True),
        *PREDICTIONS,
        *POOLED,
    ),
    prefixes=("bert.",),
    ignored=re.compile(rf"{HEADS}|embeddings\.position_ids|encoder\.alibi"),
    tied_heads=("cls.predictions.decoder.weight",),
)
_JINA_3_BLOCK = "encoder.layers.{i}"
_JINA_3_TABLE = WeightMap(
    rows=(
        *EMBED_ROWS,
        *norm("embed_norm", "emb_ln", bias=True),
        *linear("layers.{i}.qkv", f"{_JINA_3_BLOCK}.mixer.Wqkv", "qkv d", bias=True),
        *linear("layers.{i}.attn_out", f"{_JINA_3_BLOCK}.mixer.out_proj", "d q", bias=True),
        *norm("layers.{i}.attn_norm", f"{_JINA_3_BLOCK}.norm1", bias=True),
        *linear("layers.{i}.up", f"{_JINA_3_BLOCK}.mlp.fc1", "ff d", bias=True),
        *linear("layers.{i}.down", f"{_JINA_3_BLOCK}.mlp.fc2", "d ff", bias=True),
        *norm("layers.{i}.mlp_norm", f"{_JINA_3_BLOCK}.norm2", bias=True),
        *LM_HEAD,
        *LABELS,
    ),
    prefixes=("roberta.",),
    ignored=re.compile(HEADS),
    tied_heads=("lm_head.decoder.weight",),
)
_JINA_2_GATES: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
_OTHER_JINA = "jina-bert-v2-qk-post-norm"


def _read_jina_2(hf: Fields, common: Common) -> ModelConfig:
    hf.only("position_embedding_type", "alibi")
    hf.only("is_decoder", False)
    hf.only("add_cross_attention", False)
    if any(_OTHER_JINA in str(code) for code in hf.nested("auto_map").values.values()):
        raise hf.refuse("auto_map", f"networks of {_OTHER_JINA}, which norm queries and keys, are not supported")
    gate = hf.text("feed_forward_type", "original")
    if gate not in _JINA_2_GATES:
        raise ModelLoadError(f"{hf.file}: feed_forward_type is {gate!r}; supported are {', '.join(_JINA_2_GATES)}")
    return read_like_bert(
        hf,
        common,
        hf.activation("hidden_act", "gelu"),
        activation=_JINA_2_GATES[gate],
        gated_mlp=True,
        mlp_bias=False,
        alibi=True,
        learned_positions=False,
        num_token_types=hf.size("type_vocab_size", 2),
    )


def _read_jina_3(hf: Fields, common: Common) -> ModelConfig:
    hf = hf.with_defaults(
        vocab_size=250_002, hidden_size=1024, num_attention_heads=16, num_hidden_layers=24, intermediate_size=4096,
        max_position_embeddings=8194, layer_norm_eps=1e-5, rope_theta=20000.0,
    )  # fmt: skip
    head_dim = equal_heads(hf)["head_dim"]
    hf.only("head_dim", head_dim)
    return read_like_bert(
        hf,
        common,
        "gelu",  # whatever the mlps have
        rope=read_rope(hf, head_dim, hf.size("max_position_embeddings")),
        learned_positions=False,
        num_token_types=hf.size("type_vocab_size", 1),
    )


JINA_BERT = Family(
    "jina_bert", named("JinaBert", *TASKS), _read_jina_2, _JINA_2_TABLE, types=(), read_classifier=first_token("tanh")
)
JINA_EMBEDDINGS_3 = Family(
    "jina_embeddings_v3",
    named("JinaEmbeddingsV3", *(task for task in TASKS if task != "ForMultipleChoice")),
    _read_jina_3,
    _JINA_3_TABLE,
    read_classifier=first_token("tanh"),
)
