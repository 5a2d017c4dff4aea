"""The numbers of interventions: lists, base64, masks, and their bounds."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.schemas.inspect.interventions import MAX_LIST_NUMBERS
from tests.server.dialects.routes import refuses
from tests.server.dialects.test_interventions import TRACE, numbers, sent
from tests.server.serving import Site, site, tiny_config


async def test_numbers_come_as_lists_or_base64(plain: Site) -> None:
    vector = [0.5 * i for i in range(8)]
    half = np.array(vector, np.float16)
    encoded = {"data": base64.b64encode(half.tobytes()).decode(), "shape": [8], "dtype": "float16"}
    listed, decoded = await sent(
        plain,
        {"point": "resid_post.0", "op": "add", "value": vector, "positions": [1, 2]},
        {"point": "resid_post.0", "op": "patch", "value": encoded},
    )
    assert (listed.op, decoded.op) == ("add", "set")
    assert np.array_equal(numbers(listed), np.array(vector, np.float32))
    assert np.array_equal(numbers(decoded), half.astype(np.float32))
    assert decoded.positions is None  # one vector for every position, also of generated tokens


SCORES = {"point": "attn.hook_attn_scores", "layer": 0, "op": "patch"}


@pytest.mark.parametrize("point", ["attn.hook_attn_scores", "hook_attn_scores", "attn_scores"])
@pytest.mark.parametrize("is_encoded", [False, True])
async def test_masked_scores_are_put_back_as_they_were_told(point: str, is_encoded: bool, plain: Site) -> None:
    """Send minus infinity, which is null in lists. An old version rejected it as a number that is not finite."""
    scores = np.where(np.tri(4, dtype=bool), np.arange(16, dtype="<f4").reshape(4, 4), -np.inf)
    value: Any = [[None if number == -np.inf else number for number in row] for row in scores.tolist()]
    if is_encoded:
        data = base64.b64encode(scores.astype("<f4").tobytes()).decode()
        value = {"data": data, "shape": [4, 4], "dtype": "float32"}
    (change,) = await sent(plain, {**SCORES, "point": point, "value": value})
    np.testing.assert_array_equal(numbers(change), scores)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({**SCORES, "value": np.zeros((4, 4)).tolist()}, "query 0 does not see the key 1"),
        ({**SCORES, "value": np.zeros((2, 4)).tolist(), "positions": [2, 1]}, "query 2 does not see the key 3"),
        ({**SCORES, "point": "attn.hook_pattern", "value": np.full((4, 4), 0.25).tolist()}, "0 is accepted there"),
        ({**SCORES, "op": "add", "value": np.ones((4, 4)).tolist()}, "minus infinity, is accepted there"),
        ({**SCORES, "point": "attn.hook_pattern", "value": [[None] * 4] * 4}, "is no array"),
        ({**SCORES, "op": "scale", "value": [None]}, "is no array"),
        ({**SCORES, "value": [None, "1"]}, "is no array"),
    ],
)
async def test_numbers_that_the_mask_would_drop_are_refused_by_their_place(
    item: dict[str, Any], said: str, plain: Site
) -> None:
    error = await plain.error("/v1/trace", {**TRACE, "interventions": [item]}, 400)
    assert (error["param"], plain.engine.submitted) == ("interventions", [])
    assert said in error["message"]


@pytest.mark.parametrize("value", [1.0, [[1.0]], [1.0, 0.0, 0.0, 0.0], [[1.0], [2.0], [0.5], [0.0]]])
async def test_numbers_that_are_the_same_for_all_queries_or_keys_are_meant_for_those_that_see_each_other(
    value: Any, plain: Site
) -> None:
    assert len(await sent(plain, {**SCORES, "op": "add", "value": value})) == 1


async def test_a_list_may_hold_as_many_numbers_as_are_said(tmp_path: Path) -> None:
    config = replace(tiny_config(), vocab_size=MAX_LIST_NUMBERS)
    async with site(tmp_path, config=config) as at:
        (change,) = await sent(at, {"op": "add", "value": [1.0] * MAX_LIST_NUMBERS, "point": "logits"})
        assert numbers(change).shape == (MAX_LIST_NUMBERS,)


async def test_other_long_lists_of_that_name_are_no_values(plain: Site) -> None:
    """Check against an old failure: the numbers of such a list were counted as numbers of an intervention."""
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"value": [0] * 20_000}}
    assert (await plain.post("/v1/chat/completions", body)).status_code == 200


async def test_base64_of_several_pieces_arrives_whole(tmp_path: Path) -> None:
    wide = np.arange(1 << 18, dtype=np.float32)
    value = {"data": base64.b64encode(wide.tobytes()).decode(), "shape": [1 << 18]}
    async with site(tmp_path, config=replace(tiny_config(), vocab_size=1 << 18)) as at:
        (change,) = await sent(at, {"point": "logits", "op": "add", "value": value})
    assert np.array_equal(numbers(change), wide)


async def test_numbers_for_each_position_stay_with_the_inputs_own(plain: Site) -> None:
    rows = [[float(i)] * 8 for i in range(4)]
    (change,) = await sent(plain, {"point": "resid_post.0", "op": "patch", "value": rows}, route="/v1/completions")
    assert change.positions == (0, 1, 2, 3)


async def test_values_that_are_too_large_together_are_413(plain: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("server.generation.interventions.reading.MAX_VALUE_BYTES", 100)
    item = {"point": "hook_resid_pre", "layer": "all", "op": "add", "value": [1.0] * 8}
    await refuses(plain, "/v1/trace", {**TRACE, "interventions": [item, item]}, code="values_too_large", status=413)


async def test_values_count_against_the_budget_of_captures_while_the_request_runs(plain: Site) -> None:
    item = {"point": "resid_post.0", "op": "add", "value": [1.0] * 8}
    await sent(plain, item)
    await sent(plain, item, route="/v1/completions")
    traced, generated = plain.engine.submitted
    assert traced.capture_bytes == tiny_config().vocab_size * 4 + 8 * 4
    assert generated.capture_bytes == 8 * 4


async def test_values_of_all_choices_are_413_when_they_never_fit(tmp_path: Path) -> None:
    value = {"point": "resid_pre.0", "op": "add", "value": [1.0] * 8}
    prompt = {"prompt": "abcd", "max_tokens": 2, "interventions": [value]}
    async with site(tmp_path, max_capture_bytes=32 * 5) as at:
        error = await at.error("/v1/completions", {**prompt, "n": 6, "temperature": 1.0}, 413)
        assert at.engine.submitted == []
        assert (await at.post("/v1/completions", {**prompt, "n": 5, "temperature": 1.0})).status_code == 200
    assert error["code"] == "capture_too_large"
