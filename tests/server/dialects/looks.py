"""Helpers for the tests of the routes that explain a pass: one small text, and a small network behind the routes. The
numbers of these routes are checked in the tests of every family.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, site
from tests.support.shared import once
from tests.tiny import make_variant

TEXT = "abcab"
IDS = list(TEXT.encode())
LAYERS, HEADS = 2, 4
NEEDED: dict[str, dict[str, Any]] = {"explain": {"layer": 0, "head": 0}, "trace": {"points": ["hook_resid_post"]}}
"""Required fields, by route."""


def engine_of() -> InlineEngine:
    """Return an engine of a small Llama."""
    return InlineEngine(folder=once("looks", lambda folder: make_variant("llama-gqa", folder)))


def at_site(folder: Path, engine: InlineEngine, **settings: Any) -> Any:
    """Return the application around an engine."""
    return site(folder, engine, config=engine.model_config, **settings)


async def ask(at: Site, route: str, **body: Any) -> dict[str, Any]:
    """Return the only entry of the answer. The input is `TEXT` unless the body has another one."""
    answer = await at.post(f"/v1/{route}", {"input": TEXT, **NEEDED.get(route, {}), **body})
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["data"]
    return dict(entry)


def array(entry: dict[str, Any], name: str) -> Any:
    """Return an array of an entry, with the shape and the axes that the entry states."""
    told = entry["arrays"][name]
    value = np.array(told["data"], float)
    assert list(value.shape) == told["shape"]
    assert len(told["axes"]) == value.ndim
    return value
