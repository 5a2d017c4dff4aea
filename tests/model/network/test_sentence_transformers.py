"""How a folder's sentence-transformers files define its embeddings; unsupported options are reported, never guessed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.loading.loader import load_dense_layers
from lightwell.model.network.sentence_transformers import DenseConfig, EmbeddingDefaults, embedding_defaults

OLD = "sentence_transformers.models."
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OLD}Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OLD}Normalize"}
BERT = {"architectures": ["BertModel"], "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{OLD}Dense"}
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


def write_dense(folder: Path, name: str, **values: Any) -> None:
    (folder / name).mkdir()
    given = {"in_features": 48, "out_features": 96, "bias": False, "activation_function": IDENTITY, **values}
    (folder / name / "config.json").write_text(json.dumps(given), encoding="utf-8")


def config_of(folder: Path, values: dict[str, Any] | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(values or BERT), encoding="utf-8")
    return read_config(folder)


def read(
    folder: Path, pooling: dict[str, Any], *modules: dict[str, Any], config: dict[str, Any] | None = None, **files: Any
) -> EmbeddingDefaults:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    (folder / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING, *modules]), encoding="utf-8")
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    return embedding_defaults(folder, config_of(folder, config))


def test_without_such_files_an_encoder_takes_the_mean_and_a_decoder_the_last(tmp_path: Path) -> None:
    assert embedding_defaults(tmp_path, config_of(tmp_path)) == EmbeddingDefaults(pooling="mean", normalize=True)
    assert embedding_defaults(PACKAGED, read_config(PACKAGED)) == EmbeddingDefaults(pooling="last", normalize=True)


@pytest.mark.parametrize(
    ("written", "pooling", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean", ()),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls", ()),
        ({"pooling_mode_lasttoken": True}, "last", ()),
        ({"pooling_mode": "cls"}, "cls", ()),
        ({"pooling_mode": ["lasttoken"]}, "last", ()),
        ({"word_embedding_dimension": 48}, "mean", ()),
        ({"pooling_mode": "max"}, "mean", ("max",)),
        ({"pooling_mode_weightedmean_tokens": True}, "mean", ("weightedmean",)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "mean", ("cls", "mean")),
        ({"pooling_mode": ["lasttoken", "mean_sqrt_len_tokens"]}, "mean", ("last", "mean_sqrt_len_tokens")),
    ],
)
def test_poolings_are_read_in_both_spellings_and_in_their_order(
    tmp_path: Path, written: dict[str, Any], pooling: str, modes: tuple[str, ...]
) -> None:
    found = read(tmp_path, written)
    assert (found.pooling, found.modes) == (pooling, modes)
    assert (found.normalize, found.is_declared, found.refusal) == (False, True, None)


def test_normalisation_length_case_and_prompts_are_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"pooling_mode": "mean"},
        {**NORMALIZE, "type": "sentence_transformers.base.modules.normalize.Normalize"},  # of a newer release
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "query: "}, "default_prompt_name": "query"},
    )
    assert (found.normalize, found.max_length, found.truncate, found.lowercase) == (True, 256, True, True)
    assert (found.prompts, found.default_prompt_name) == ({"query": "query: "}, "query")


@pytest.mark.parametrize(
    ("limits", "tokenizer", "expected"),
    [
        ({}, {"model_max_length": 12}, 12),
        ({"max_seq_length": None}, {"model_max_length": 12.0}, 12),
        ({"max_seq_length": 8}, {"model_max_length": 12}, 8),
        ({}, {"model_max_length": int(1e30)}, None),
        ({}, {}, None),
    ],
)
def test_the_tokenizers_length_counts_where_no_other_is_written(
    tmp_path: Path, limits: dict[str, Any], tokenizer: dict[str, Any], expected: int | None
) -> None:
    """Check the tokenizer's length: sentence-transformers 6 writes it nowhere else."""
    found = read(tmp_path, {"pooling_mode": "mean"}, sentence_bert_config=limits, tokenizer_config=tokenizer)
    assert found.max_length == expected


@pytest.mark.parametrize("module", ["Normalize", "Dense"])
def test_modules_that_are_not_built_are_named_and_the_usual_is_taken(tmp_path: Path, module: str) -> None:
    found = read(tmp_path, {"pooling_mode": "mean"}, NORMALIZE, {"Normalize": NORMALIZE, "Dense": DENSE}[module])
    assert f"the modules are Transformer, Pooling, Normalize, {module};" in (found.refusal or "")
    assert (found.pooling, found.normalize) == ("mean", True)


def test_prompts_that_would_be_left_out_of_the_vectors_are_refused(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: "}}
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    found = read(tmp_path, pooling, config_sentence_transformers=prompts)
    assert "include_prompt is False" in (found.refusal or "")


def test_dense_layers_are_read_in_their_order(tmp_path: Path) -> None:
    write_dense(tmp_path, "2_Dense")
    write_dense(tmp_path, "3_Dense", in_features=96, out_features=32, bias=True, activation_function=TANH)
    found = read(tmp_path, {"pooling_mode": "mean"}, DENSE, {**DENSE, "path": "3_Dense"}, NORMALIZE)
    assert found.dense == (
        DenseConfig(path="2_Dense", in_features=48, out_features=96, bias=False, is_tanh=False),
        DenseConfig(path="3_Dense", in_features=96, out_features=32, bias=True, is_tanh=True),
    )
    assert (found.pooling, found.normalize, found.refusal) == ("mean", True, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "activation_function is 'torch.nn.modules.act"),
        ({"use_residual": True}, "use_residual is True; False or None is supported"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'; 'sentence_embedding'"),
    ],
)
def test_a_dense_layer_that_is_not_built_is_said(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write_dense(tmp_path, "2_Dense", **change)
    found = read(tmp_path, {"pooling_mode": "cls"}, DENSE)
    assert f"2_Dense/config.json: {reason}" in (found.refusal or "")
    assert (found.pooling, found.dense) == ("mean", ())


def test_a_dense_layer_that_fits_nothing_is_named(tmp_path: Path) -> None:
    write_dense(tmp_path, "2_Dense", in_features=47)
    with pytest.raises(
        ModelLoadError, match=r"2_Dense/config\.json: in_features is 47; the previous module computes vectors with 48"
    ):
        read(tmp_path, {"pooling_mode": "mean"}, DENSE)
    (tmp_path / "modules.json").write_text(json.dumps([TRANSFORMER, POOLING, {**DENSE, "path": "../2_Dense"}]))
    with pytest.raises(
        ModelLoadError, match=r"path is '\.\./2_Dense'; the name of a folder inside the model's folder is expected"
    ):
        embedding_defaults(tmp_path, config_of(tmp_path))


def test_dense_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_dense(tmp_path, "2_Dense")
    dense = read(tmp_path, {"pooling_mode": "mean"}, DENSE).dense
    save_file({"linear.weight": torch.zeros(96, 47)}, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"2_Dense: the tensors are .*96, 47.*, but config.json requires .*96, 48"):
        load_dense_layers(tmp_path, dense, torch.float32, torch.device("cpu"))


def test_a_cut_of_the_vector_is_not_ignored(tmp_path: Path) -> None:
    found = read(tmp_path, {"pooling_mode": "mean"}, config_sentence_transformers={"truncate_dim": 16})
    assert found.refusal == "config_sentence_transformers.json: truncate_dim is 16, which is not supported"


def test_nonsense_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"1_Pooling/config.json: pooling_mode is 'median'; one or more of"):
        read(tmp_path, {"pooling_mode": "median"})
    (tmp_path / "modules.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"modules\.json: a JSON array of objects is expected"):
        embedding_defaults(tmp_path, config_of(tmp_path))
