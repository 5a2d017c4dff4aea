"""Correlations over a text, over HTTP, compared with correlations of the traced numbers."""

import math
import random
from typing import Any

import numpy as np
import pytest

from tests.server.dialects.conftest import FAMILIES
from tests.server.dialects.test_weights import array, entry, every
from tests.server.serving import Site


def ids(at: Site, length: int) -> list[int]:
    return [random.randrange(at.context.config.vocab_size) for _ in range(length)]


SURE = 1 - 1e-6
"""Squared correlation above which the mutual information (6.9 nats and more) is inexact, since few digits of the
distance from 1 are known. Two neurons that are active in the same single sample reach it.
"""


def information(rho: np.ndarray) -> np.ndarray:
    """Return the Gaussian mutual information of pairs of that correlation, in nats."""
    found: np.ndarray = -0.5 * np.log1p(-np.minimum(np.square(rho), 1 - 1e-15))
    return found


@every(*FAMILIES)
async def test_correlations_are_those_of_the_traced_numbers(at: Site) -> None:
    inputs = [ids(at, 12), ids(at, 9)]
    body = {"input": inputs, "positions": [1, 3, 4, 7, -1]}
    point = ("encoder." if at.context.config.encoder else "") + "blocks.1.mlp.hook_post"
    told = entry(await at.post("/v1/geometry", {**body, "point": point, "num_strongest": 4}))
    traced = (await at.post("/v1/trace", {**body, "points": [point]})).json()["data"]
    samples = np.concatenate([np.array(point["data"]) for each in traced for point in each["points"].values()])
    assert told["num_samples"] == len(samples)
    varies = samples.std(0) > 0
    whole = np.atleast_2d(np.corrcoef(samples[:, varies].astype(np.float64), rowvar=False))
    rho = whole[np.triu_indices(len(whole), 1)]
    assert told["num_pairs"] == len(rho)
    assert told["num_constant_units"] == (~varies).sum()
    assert told["mean_correlation"] == pytest.approx(rho.mean(), abs=1e-6)
    assert told["root_mean_square_correlation"] == pytest.approx(math.sqrt(np.square(rho).mean()), abs=1e-6)
    unsure = (np.square(rho) > SURE).mean()
    assert told["mean_information"] == pytest.approx(information(rho).mean(), abs=1e-4 + 18 * unsure)
    assert told["baseline"]["std"] == pytest.approx(1 / math.sqrt(len(samples) - 1))
    pairs = array(told, "strongest_pairs")
    by_hand = np.array([np.corrcoef(samples[:, i], samples[:, j])[0, 1] for i, j in pairs])
    np.testing.assert_allclose(array(told, "strongest_correlations"), by_hand, atol=1e-5)
    sure, found = np.square(by_hand) < SURE, array(told, "strongest_information")
    np.testing.assert_allclose(found[sure], information(by_hand[sure]), atol=1e-4)
    assert (found[~sure] > 6.9).all()


async def test_correlations_capture_no_more_than_the_units_that_are_asked_for(at: Site) -> None:
    """Check that only the selected units are captured. In an old version the worker sent every unit, so that the whole
    point had to fit into the capture budget.
    """
    prompt = ids(at, 20)
    body = {"input": prompt, "point": "attn.hook_z", "layer": 0, "heads": [3, 1]}
    size = at.context.config.head_dim
    told = entry(await at.post("/v1/geometry", {**body, "units": [size + 2, 0, size], "num_strongest": 3}))
    assert at.engine.submitted[-1].capture_bytes == 4 * len(prompt) * 3
    traced = (await at.post("/v1/trace", {"input": prompt, "points": ["blocks.0.attn.hook_z"]})).json()["data"][0]
    z = np.array(traced["points"]["blocks.0.attn.hook_z"]["data"])
    samples = {size + 2: z[:, 1, 2], 0: z[:, 3, 0], size: z[:, 1, 0]}
    for (i, j), rho in zip(array(told, "strongest_pairs"), array(told, "strongest_correlations"), strict=True):
        assert np.corrcoef(samples[int(i)], samples[int(j)])[0, 1] == pytest.approx(rho, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"point": "blocks.0.attn.hook_what"}, "point"),
        ({"point": "blocks.0.attn.hook_pattern"}, "point"),
        ({"point": "hook_resid_post"}, "layer"),
        ({"point": "blocks.0.hook_resid_post", "layer": 1}, "layer"),
        ({"point": "hook_embed", "layer": 1}, "layer"),
        ({"heads": 0}, "heads"),
        ({"units": 10_000}, "units"),
        ({"positions": [0, 1]}, "positions"),
        ({"positions": 64}, "positions"),
        ({"num_strongest": -1}, "num_strongest"),
    ],
)
async def test_correlations_that_make_no_sense_are_refused(at: Site, change: dict[str, Any], param: str) -> None:
    body = {"input": ids(at, 8), "point": "blocks.0.hook_resid_post", **change}
    assert (await at.error("/v1/geometry", body, 400))["param"] == param


async def test_one_unit_has_no_pair_and_so_no_mean(at: Site) -> None:
    told = entry(await at.post("/v1/geometry", {"input": ids(at, 8), "point": "blocks.0.hook_resid_post", "units": 3}))
    assert told["num_pairs"] == 0
    means = ("mean_correlation", "root_mean_square_correlation", "mean_information")
    assert [told[name] for name in means] == [None] * 3


async def test_too_many_pairs_are_refused_however_few_the_samples(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the work is limited by pairs. In an old version the limit was samples times pairs, which allowed
    minutes of work for a large vocabulary with 8 samples.
    """
    monkeypatch.setattr("server.dialects.inspect.correlations.MAX_PRODUCTS", 200 * 100)
    body = {"input": ids(at, 8), "point": "blocks.0.hook_resid_post"}
    error = await at.error("/v1/geometry", {**body, "units": list(range(20))}, 400)
    assert error["param"] == "units"
    fitting = int(error["message"].split("; ")[1].split()[0])
    assert 5 < fitting < 20
    told = entry(await at.post("/v1/geometry", {**body, "units": list(range(fitting))}))
    assert told["num_units"] == fitting
