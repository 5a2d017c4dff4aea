"""Engines over small random checkpoints, one of each kind, and the routes in front of them."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site, site
from tests.tiny import make_variant

FAMILIES = ("llama-gqa", "bert", "bart")
ALWAYS = ("t5", "mpnet", "gemma2", "gpt_neox", "granite", "gemma3n")
"""Families with terms that no archetype has: biases by distance (in a decoder, an encoder), soft caps, parallel blocks,
multipliers, several residual streams. `make test` always looks into them.
"""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, InlineEngine]:
    return {name: InlineEngine(folder=make_variant(name, tmp_path_factory.mktemp(name))) for name in FAMILIES}


@pytest.fixture
async def at(request: pytest.FixtureRequest, engines: dict[str, InlineEngine], tmp_path: Path) -> AsyncIterator[Site]:
    engine = engines[getattr(request, "param", "llama-gqa")]
    async with site(tmp_path, engine, config=engine.model_config) as built:
        yield built


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Site]:
    """Each family's application and engine, made at the first use."""

    class Made(dict[str, Site]):
        def __missing__(self, name: str) -> Site:
            folder = tmp_path_factory.mktemp(name)
            engine = InlineEngine(folder=make_variant(name, folder / "model"))
            self[name] = build_site(folder, engine, config=engine.model_config)
            return self[name]

    return Made()


@pytest.fixture
def family(request: pytest.FixtureRequest, sites: dict[str, Site]) -> Site:
    return sites[request.param]


def every_family(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", always_some(names), indirect=True)


def always_some(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters, those in `ALWAYS` with the mark that keeps them in `make test`."""
    return [pytest.param(name, marks=pytest.mark.every_family if name in ALWAYS else ()) for name in names]
