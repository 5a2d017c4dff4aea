"""A network is built from a dict of weights; each weight leaves the dict when it is packed."""

from pathlib import Path

import pytest
import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.loading.loader import build_model
from tests import tiny


@pytest.mark.every_family
@pytest.mark.parametrize("name", ["llama-gqa", "opt-post", "bart"])
def test_building_removes_all_tensors_so_that_originals_are_freed(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    config = read_config(folder)
    weights = load_weights(folder, config, torch.float32)
    build_model(config, weights, context=config.max_model_len)
    assert not weights
