"""What the tests of the routes that explain a pass share: one small text, and a numpy network whose numbers all
belong to one pass over it, so that sums can be checked.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.server.serving import Site, site, tiny_config
from tests.server.tiny_network import NetworkEngine, TinyNetwork, network_config

TEXT = "abcab"
IDS = list(TEXT.encode())
VARIANTS: dict[str, dict[str, Any]] = {
    "rmsnorm": {},
    "layernorm": {"norm": "layernorm"},
    "capped": {"attn_logit_softcap": 1.2, "final_logit_softcap": 2.5},
}
NEEDED: dict[str, dict[str, Any]] = {"explain": {"layer": 0, "head": 0}}
"""Fields without which a route refuses, by route."""


def engine_of(variant: str = "rmsnorm") -> NetworkEngine:
    """Return an engine with another network in each run; pytest shows which if a test fails."""
    config = network_config(tiny_config(), **VARIANTS[variant])
    seed = random.randrange(2**31)
    print(f"TinyNetwork({variant}, seed={seed})")
    return NetworkEngine(network=TinyNetwork(config, seed=seed))


def at_site(folder: Path, engine: NetworkEngine, **settings: Any) -> Any:
    """Return the application around the engine of such a network."""
    return site(folder, engine, config=engine.network.config, **settings)


async def ask(at: Site, route: str, **body: Any) -> dict[str, Any]:
    """Return the one entry of the answer; about `TEXT`, unless the body names another input."""
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
