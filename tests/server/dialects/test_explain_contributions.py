"""POST /v1/explain and /v1/contributions: the selected parts, and the rejected requests."""

from pathlib import Path

import numpy as np
import pytest

from tests.server.dialects.looks import TEXT, array, ask, at_site, engine_of


async def test_an_explanation_names_its_place_and_its_softmax(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "explain", layer=1, head=3, query_position=3)
    assert (entry["kv_head"], entry["query_position"]) == (1, 3)
    assert entry["arrays"]["scores"]["data"][4:] == [None]
    assert entry["softmax"]["sum_of_weights"] == pytest.approx(1)


async def test_a_selection_of_contributions_comes_in_the_order_asked_for(tmp_path: Path) -> None:
    chosen = {"layers": [1], "heads": [3, 0], "query_positions": [4, 2], "key_positions": [0, 2]}
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "contributions", **chosen)
        whole = await ask(at, "contributions", query_positions="all")
    assert "attributions" not in entry["arrays"]
    expected = array(whole, "norms")[np.ix_([1], [3, 0], [4, 2], [0, 2])]
    assert np.allclose(array(entry, "norms"), expected, rtol=1e-5)


async def test_versus_needs_a_target(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        error = await at.error("/v1/contributions", {"input": TEXT, "versus": "h"}, 400)
    assert error["param"] == "versus"
