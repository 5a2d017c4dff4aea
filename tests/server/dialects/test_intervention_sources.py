"""Interventions with numbers from other inputs: patches, means and their limits."""

from pathlib import Path
from typing import Any

import numpy as np

from server.engine.request import TraceTask
from server.http.errors import WorkerLost
from tests.server.dialects.test_interventions import ROUTES, TRACE, clean, numbers, sent
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, site, tiny_config


async def test_a_patch_takes_the_numbers_of_another_input_by_a_clean_pass(plain: Site) -> None:
    source = {"input": "xyz"}
    item = {"point": "attn.hook_z", "layer": [0, 2], "head": 1, "positions": -1, "op": "patch", "from": source}
    first, second = await sent(plain, item)
    trace, _ = plain.engine.submitted
    assert isinstance(trace.task, TraceTask)
    assert (bytes(trace.prompt_token_ids), trace.interventions) == (b"xyz", ())
    assert trace.capture_bytes == 2 * 1 * 1 * 2 * 4
    assert plain.engine.held == [4 * tiny_config().vocab_size]  # the answer's logits, not the source's numbers
    assert (first.positions, second.positions) == ((3,), (3,))  # of "abcd"; the source's last one is 2
    assert np.array_equal(numbers(first), clean("attn.hook_z", 0, 3, heads=(1,), positions=(2,)))
    assert np.array_equal(numbers(second), clean("attn.hook_z", 2, 3, heads=(1,), positions=(2,)))


async def test_a_source_may_be_another_place(plain: Site) -> None:
    source = {"input": [120, 121], "point": "blocks.2.hook_resid_pre", "positions": 0}
    (change,) = await sent(
        plain, {"point": "hook_resid_post", "layer": 0, "positions": [1, 3], "op": "add", "from": source}
    )
    assert np.array_equal(numbers(change), clean("hook_resid_pre", 2, 2, positions=(0,)))


async def test_the_difference_of_two_inputs_is_added_times_a_number(plain: Site) -> None:
    source, minus = {"input": "xyz", "positions": -1}, {"input": "uvwx", "positions": -1}
    item = {"point": "hook_resid_post", "layer": [0, 2], "op": "add", "from": source, "minus": minus, "times": 3}
    changes = await sent(plain, item)
    assert len(plain.engine.submitted) == 3
    for change, layer in zip(changes, (0, 2), strict=True):
        ends = [clean("hook_resid_post", layer, n, positions=(n - 1,)) for n in (3, 4)]
        assert np.allclose(numbers(change), 3 * (ends[0] - ends[1]))


async def test_one_layer_of_another_input_is_subtracted_from_each(plain: Site) -> None:
    minus = {"input": "xyz", "positions": 0, "layer": 1}
    item = {"point": "hook_resid_post", "layer": [0, 2], "op": "add", "from": {"input": "xy", "positions": 1}}
    changes = await sent(plain, {**item, "minus": minus})
    subtracted = clean("hook_resid_post", 1, 3, positions=(0,))
    for change, layer in zip(changes, (0, 2), strict=True):
        assert np.allclose(numbers(change), clean("hook_resid_post", layer, 2, positions=(1,)) - subtracted)


async def test_a_factor_belongs_to_what_is_added_from_another_input(plain: Site) -> None:
    item = {"point": "hook_resid_post", "layer": 0, "positions": 0}
    source = {"input": "xyz", "positions": 0}
    for wrong in (
        {"op": "patch", "from": source, "times": 2},
        {"op": "add", "value": 1, "minus": source},
        {"op": "zero", "times": 0},
    ):
        answer = await plain.post("/v1/next", {"input": "abcd", "interventions": [{**item, **wrong}]})
        assert answer.status_code == 400
        assert "is accepted with op 'add' and from only" in answer.json()["error"]["message"]


async def test_a_mean_is_over_all_positions_of_all_sources(plain: Site) -> None:
    (change,) = await sent(
        plain, {"point": "z.1", "head": 2, "op": "mean", "positions": [0], "from": {"input": ["xy", "uvw"]}}
    )
    assert len(plain.engine.submitted) == 3
    rows = np.concatenate([clean("attn.hook_z", 1, n, heads=(2,)) for n in (2, 3)])
    assert numbers(change).shape == (1, 1, 2)
    assert np.allclose(numbers(change), rows.mean(axis=0))


async def test_many_inputs_capture_a_source_once_and_count_positions_each_for_itself(plain: Site) -> None:
    item = {"point": "resid_pre.0", "positions": -1, "op": "patch", "from": {"input": "xyz"}}
    await sent(plain, item, input=["ab", "abc"])
    assert len(plain.engine.submitted) == 3
    assert [s.interventions[0].positions for s in plain.engine.submitted[1:]] == [(1,), (2,)]


async def test_one_pass_takes_all_that_is_wanted_of_equal_inputs(plain: Site) -> None:
    """Check that several changes from one text, or from the input's own mean, need only one pass over it."""
    same = {"input": "xyz"}
    changes = await sent(
        plain,
        {"point": "z.0", "head": 1, "op": "patch", "positions": [1, 2], "from": {**same, "positions": [0, 1]}},
        {"point": "z.0", "head": 2, "op": "patch", "positions": [1, 2], "from": {**same, "positions": [0, 1]}},
        {"point": "z.0", "head": 1, "op": "add", "positions": [1, 2], "from": {**same, "positions": [0, 1]}},
        {"point": "resid_pre.2", "op": "mean", "from": {"input": ["xyz", "abcd", "xyz"]}},
        {"point": "resid_pre.1", "op": "mean", "positions": 0},
    )
    passes = plain.engine.submitted[:-1]
    assert sorted(bytes(each.prompt_token_ids) for each in passes) == [b"abcd", b"xyz"]
    assert sorted(len(each.task.points) for each in passes if isinstance(each.task, TraceTask)) == [2, 3]
    for change, head in zip(changes, (1, 2, 1), strict=False):
        assert np.array_equal(numbers(change), clean("attn.hook_z", 0, 3, heads=(head,), positions=(0, 1)))
    rows = np.concatenate([clean("hook_resid_pre", 2, n) for n in (3, 4, 3)])
    assert np.allclose(numbers(changes[3]), rows.mean(axis=0))
    assert np.allclose(numbers(changes[4]), clean("hook_resid_pre", 1, 4).mean(axis=0))


async def test_there_is_a_bound_on_the_tokens_of_sources(plain: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("server.generation.interventions.reading.MAX_SOURCE_TOKENS", 5)
    same = {"point": "resid_pre.0", "op": "mean", "from": {"input": ["abc", "de"]}}
    more = {"point": "resid_pre.1", "op": "patch", "positions": 0, "from": {"input": "f"}}
    await sent(plain, same, same)  # equal inputs are one pass
    error = await plain.error("/v1/trace", {**TRACE, "interventions": [same, more]}, 400)
    assert len(plain.engine.submitted) == 3
    assert error["code"] == "sources_too_long"
    assert "have 6 tokens, equal inputs counted once; at most 5 are accepted" in error["message"]


async def test_a_later_wrong_intervention_stops_the_pass_of_an_earlier_source(plain: Site) -> None:
    items = [{"point": "z.0", "op": "patch", "positions": 0, "from": {"input": "x"}}, {"point": "z.9", "op": "zero"}]
    error = await plain.error("/v1/trace", {**TRACE, "interventions": items}, 400)
    assert plain.engine.submitted == []
    assert error["message"].startswith("interventions[1].layer: there is no layer 9")


async def test_a_failed_pass_over_a_source_is_the_requests_own_failure(tmp_path: Path) -> None:
    engine = FakeEngine(failure=WorkerLost("gone", code="worker_lost", retry_after=1))
    item = {"point": "z.0", "op": "patch", "positions": 0, "from": {"input": "x"}}
    async with site(tmp_path, engine) as at:
        answer = await at.post("/v1/completions", {**ROUTES["/v1/completions"], "interventions": [item]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
