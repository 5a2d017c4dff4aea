"""Gemma 4: its layers are of several kinds, and may read the keys and values of earlier layers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.matrices import UnknownMatrix, find_matrix
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.sharding.split import check_split
from lightwell.server.config.memory_estimate import kv_bytes_per_token
from tests import tiny
from tests.model.checkpoint.test_families import read
from tests.network import CPU

pytestmark = pytest.mark.every_family  # each has layers of other kinds


@pytest.fixture(scope="module", params=["gemma4", "gemma4-e2b", "gemma4-experts"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


def config_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def test_fields_of_their_own_and_a_configuration_by_layer_mean_the_same(folder: Path, tmp_path: Path) -> None:
    """Read the first checkpoints, which name the sizes of heads without a window, and transformers' current format."""
    now = config_of(folder)
    first = {key: value for key, value in now.items() if key != "per_layer_config"}
    own = now["per_layer_config"][str(now["num_hidden_layers"] - 1)]
    first |= {"global_head_dim": own["head_dim"], "num_global_key_value_heads": own.get("num_key_value_heads")}
    assert read(tmp_path, first) == read(tmp_path, now)
    assert read(tmp_path, {**first, "global_head_dim": 32}) != read(tmp_path, now)
    padded = {layer.zfill(2): each for layer, each in now["per_layer_config"].items()}  # of ten layers and more
    assert read(tmp_path, {**now, "per_layer_config": padded}) == read(tmp_path, now)


@pytest.mark.parametrize("name", ["gemma4", "gemma4-e2b", "gemma3n"])
def test_layers_share_a_cache_that_is_as_large_as_is_said(name: str, tmp_path: Path) -> None:
    config = read_config(tiny.make_variant(name, tmp_path))
    cache = KVCache(config, 3, 8, torch.float32, CPU)
    distinct = {id(layer): layer for layer in cache.layers}
    held = sum(each.keys.nbytes + each.values.nbytes for each in distinct.values())
    assert held == 3 * KVCache.bytes_per_block(config, 8, torch.float32) == 24 * kv_bytes_per_token(config, "float32")
    assert len(distinct) == config.num_layers - config.num_kv_shared_layers
    for layer, each in enumerate(cache.layers):
        own, source = config.at(layer), config.kv_layer(layer)
        assert each is cache.layers[source]
        assert (config.window_of(source) is None) == (config.window_of(layer) is None)
        assert each.values.shape == (3, own.num_kv_heads, 8, own.head_dim)


def test_each_layer_has_the_matrices_of_its_own_sizes(folder: Path) -> None:
    config = read_config(folder)
    weights = LiveWeights(load_model(folder, config, torch.float32, CPU))
    for layer in range(config.num_layers):
        for name in ("W_Q", "W_K", "W_V", "W_O", "mlp.W_in"):
            if config.kv_layer(layer) != layer and name in ("W_K", "W_V"):
                with pytest.raises(UnknownMatrix, match=f"reads the keys and values of layer {config.kv_layer(layer)}"):
                    find_matrix(config, name, layer)
                continue
            place = find_matrix(config, name, layer)
            matrix = weights(place.weight)
            assert matrix is not None
            part = matrix[place.first : place.last]
            assert place.matrix_shape == tuple((part.T if place.is_turned else part).shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'; only null and 'vision'"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5; a number that leaves earlier layers"),
        ({"per_layer_config": {"2": {"head_dim": 24}}}, "per_layer_config is .*; other head_dim and num_key_value_he"),
        ({"per_layer_config": {"2": {"sliding_window": 3}, "5": {"sliding_window": 3}}}, "per_layer_config is .*alike"),
        ({"enable_moe_block": True, "moe_intermediate_size": 8, "num_experts": 2, "top_k_experts": 3},
         r"top_k_experts is 3; at most num_experts \(2"),
        ({"enable_moe_block": True, "moe_intermediate_size": 8, "num_experts": None},
         "num_experts is None; a positive integer is expected"),
        ({"rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor is 0.5"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values = config_of(tiny.make_variant("gemma4-e2b", tmp_path / "made"))
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, {**values, **change})


def test_layers_of_several_kinds_are_not_divided_among_processes(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="layers of several kinds, which are not divided; 1 is accepted"):
        check_split(read_config(folder), 2)
