"""Bodies within the limits that would take long: refused before the work, or worked on in pieces, between which the
event loop serves others.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from server.routes.inspect.intervention_sources import MAX_CHANGES
from tests.server.fake_client import NUM_LAYERS
from tests.server.routes.test_interventions import clean, numbers
from tests.server.serving import Site, site

ZERO = {"point": "attn.hook_z", "layer": "all", "op": "zero"}


async def turns_of(at: Site, path: str, body: Any) -> tuple[httpx.Response, int]:
    """Return the answer, and how many turns the event loop gave to others until it was there."""
    answering = asyncio.create_task(at.post(path, body))
    turns = 0
    while not answering.done():
        turns += 1
        await asyncio.sleep(0)
    return await answering, turns


async def test_inputs_times_interventions_have_a_bound_of_their_own(tmp_path: Path) -> None:
    body = {"input": ["a"] * 2048, "points": ["ln_final.hook_scale"], "interventions": [ZERO] * 64}
    async with site(tmp_path, max_num_queued_requests=4096) as at:
        error = await at.error("/v1/trace", body, 400)
        assert error["code"] == "too_many_changes"
        assert f"are {2048 * 64 * NUM_LAYERS} together, multiplied; at most {MAX_CHANGES} are" in error["message"]
        body = {"prompt": ["a"] * 1000, "max_tokens": 1, "interventions": [ZERO] * 64}
        assert (await at.error("/v1/completions", body, 400))["code"] == "too_many_changes"
        assert at.engine.submitted == []


async def test_interventions_are_planned_once_for_inputs_of_a_length(tmp_path: Path) -> None:
    inputs = [[1] * (1 + i % 60) for i in range(600)]
    async with site(tmp_path) as at:
        body = {"input": inputs, "points": ["ln_final.hook_scale"], "interventions": [ZERO] * 64}
        answer, turns = await turns_of(at, "/v1/trace", body)
        assert answer.status_code == 200
        changes = [each.interventions for each in at.engine.submitted]
    assert {len(each) for each in changes} == {64 * NUM_LAYERS}
    assert len({id(each) for each in changes}) == 60
    assert turns > 60 + 600 // 64


async def test_equal_inputs_of_from_are_one_source(tmp_path: Path) -> None:
    """Their mean weighs each of them: two of "ab" and one of "cdef" are eight positions."""
    mean = {"point": "resid_pre.0", "op": "mean"}
    async with site(tmp_path) as at:
        many = [{**mean, "from": {"input": ["a"] * 200}}] * 64
        answer = await at.post("/v1/trace", {"input": "a", "points": ["logits"], "interventions": many})
        assert answer.status_code == 200
        assert len(at.engine.submitted) == 2
        few = [{**mean, "from": {"input": inputs}} for inputs in (["ab", "ab", "cdef"], ["cdef", "ab", "ab"])]
        await at.post("/v1/trace", {"input": "a", "points": ["logits"], "interventions": few})
        one, other = at.engine.submitted[-1].interventions
        own = await at.post("/v1/trace", {"input": ["a"] * 2048, "points": ["logits"], "interventions": [mean]})
        assert own.status_code == 200
        assert len({id(each.interventions) for each in at.engine.submitted[-2048:]}) == 1
    two, four = (clean("hook_resid_pre", 0, length).sum(0) for length in (2, 4))
    assert np.allclose(numbers(one).reshape(-1), (2 * two + four) / 8)
    assert np.allclose(numbers(one), numbers(other))
