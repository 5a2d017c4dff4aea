"""Tiny networks, each loaded once for all tests of the engine."""

import pytest

from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.server.engine.driving import Load, load


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A function that returns the network of a variant, by its name."""
    models: dict[str, Transformer] = {}

    def get(name: str) -> Transformer:
        if name not in models:
            models[name] = load(tiny.make_variant(name, tmp_path_factory.mktemp("model")))
        return models[name]

    return get
