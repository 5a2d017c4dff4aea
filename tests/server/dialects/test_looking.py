"""Common behaviour of all routes that explain a pass: many inputs, formats, budgets, errors, and separate threads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from server.http.errors import QueueFull
from tests.server.dialects.looks import HEADS, LAYERS, NEEDED, TEXT, at_site, engine_of
from tests.server.dialects.routes import refuses

ROUTES = ("next", "lens", "explain", "contributions", "trajectory", "heads", "rollout")
MEASURED = (*ROUTES, "attention", "trace")


# --- inputs and answers ---


@pytest.mark.parametrize("route", ROUTES)
async def test_many_inputs_come_in_order_and_in_any_format(route: str, tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        body = {"input": ["ab", "abcd"], **NEEDED.get(route, {})}
        answer = (await at.post(f"/v1/{route}", body)).json()
        binary = await at.post(f"/v1/{route}", body, headers={"accept": "application/vnd.safetensors"})
        lines = await at.post(f"/v1/{route}", body, headers={"accept": "application/x-ndjson"})
    assert [len(entry["tokens"]) for entry in answer["data"]] == [2, 4]
    assert answer["usage"]["prompt_tokens"] == 6
    tensors = load_safetensors(binary.content)
    assert set(tensors) == {f"{i}/{name}" for i, entry in enumerate(answer["data"]) for name in entry["arrays"]}
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        told = np.array(answer["data"][int(index)]["arrays"][key]["data"], float)
        assert np.array_equal(
            np.where(np.isfinite(value), value, np.nan).astype("f4"), told.astype("f4"), equal_nan=True
        )
    first, second = answer.pop("data")
    assert entries_of(lines.text) == [{**answer, **first}, second]


def entries_of(ndjson: str) -> list[dict[str, Any]]:
    """Return the entries in the form of the JSON answer, from one line per entry and one line per array."""
    entries: list[dict[str, Any]] = []
    for line in map(json.loads, ndjson.splitlines()):
        if "array" in line:
            entries[line.pop("index")]["arrays"][line.pop("array")] = line
        else:
            entries.append({**line, "arrays": {}})
    return entries


@pytest.mark.parametrize("route", MEASURED)
async def test_a_full_budget_is_429_and_too_large_an_answer_413(route: str, tmp_path: Path) -> None:
    engine = engine_of()
    body = {"input": "a" * 60, "full": True} if route == "next" else {"input": "a" * 60, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine, max_response_bytes=20) as at:
        await refuses(at, f"/v1/{route}", body, code="answer_too_large", status=413)
        assert engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1
    engine.refuse = QueueFull("full", code="capture_budget_full", retry_after=1)
    async with at_site(tmp_path, engine) as at:
        full = await at.post(f"/v1/{route}", body)
        assert await at.metric('lightwell_capture_rejected_total{reason="budget_full"}') == 1
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("route", sorted(set(ROUTES) - {"lens"}))
async def test_inputs_that_capture_too_much_together_are_413_before_any_runs(route: str, tmp_path: Path) -> None:
    """Send inputs that fit one by one, but not together: all captures stay in memory until the last input has run."""
    engine = engine_of()
    body = {"input": ["a" * 60] * 12, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
        budget = 2 * max(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=budget) as at:
        await refuses(at, f"/v1/{route}", body, code="capture_too_large", status=413)
        assert engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1


@pytest.mark.parametrize("route", ["explain", "contributions"])
async def test_what_is_asked_of_the_weights_counts_before_anything_runs(route: str, tmp_path: Path) -> None:
    """Check that the request is rejected before the passes over its inputs; an old version rejected it after them."""
    engine = engine_of()
    body = {"input": TEXT, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
    num_bytes = sum(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes - 1) as at:
        await refuses(at, f"/v1/{route}", body, f"would capture {num_bytes} bytes", status=413)
        assert engine.submitted == []
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("next", {"position": 5}, "position"),
        ("next", {"temperatures": []}, "temperatures"),
        ("next", {"temperatures": [1, -1]}, "temperatures[1]"),
        ("lens", {"layers": LAYERS + 1}, "layers"),
        ("lens", {"positions": [9]}, "positions"),
        ("explain", {"layer": LAYERS}, "layer"),
        ("explain", {"head": -HEADS - 1}, "head"),
        ("explain", {"query_position": 5}, "query_position"),
        ("explain", {"part": "cross"}, "part"),
        ("contributions", {"heads": []}, "heads"),
        ("contributions", {"key_positions": 7}, "key_positions"),
        ("contributions", {"versus": "h"}, "versus"),
        ("trajectory", {"positions": -6}, "positions"),
        ("trajectory", {"compare_positions": 6}, "compare_positions"),
        ("heads", {"layers": [LAYERS]}, "layers"),
        ("heads", {"repeat_length": 4}, "repeat_length"),
        ("rollout", {"part": "encoder"}, "part"),
        ("rollout", {"query_positions": 6}, "query_positions"),
    ],
)
async def test_what_the_model_or_the_input_lacks_is_400(
    route: str, fields: dict[str, Any], param: str, tmp_path: Path
) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        await refuses(at, f"/v1/{route}", {"input": TEXT, **NEEDED.get(route, {}), **fields}, param=param)
        assert at.engine.submitted == []
