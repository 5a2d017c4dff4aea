"""Interventions in request bodies: the arguments of the engine, values, sources, and requests that are rejected."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightwell.server.engine.messages.request import GenerateTask, Intervention, PointCapture, TraceTask
from lightwell.server.http.errors import WorkerLost
from lightwell.server.schemas.inspect.interventions import MAX_INTERVENTIONS, MAX_LIST_NUMBERS
from tests.server.dialects.routes import refuses
from tests.server.fake_client import FakeEngine, traced
from tests.server.serving import Site, site, tiny_config, tiny_encoder_decoder

TRACE = {"input": "abcd", "points": ["logits"], "positions": -1}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/trace": TRACE,
    "/v1/attention": {"input": "abcd", "layers": 0},
    "/v1/completions": {"prompt": "abcd", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2}},
}


async def sent(at: Site, *items: dict[str, Any], route: str = "/v1/trace", **body: Any) -> tuple[Intervention, ...]:
    """Return the interventions of the last submitted request: earlier ones are passes over sources."""
    answer = await at.post(route, {**ROUTES[route], **body, "interventions": list(items)})
    assert answer.status_code == 200, answer.text
    return at.engine.submitted[-1].interventions


def numbers(change: Intervention) -> Any:
    assert change.array is not None
    return np.frombuffer(change.array.data, change.array.dtype).reshape(change.array.shape)


def clean(point: str, layer: int | None, length: int, **selection: Any) -> Any:
    """Return the values of the fake network at a point without interventions."""
    capture = PointCapture(name="x", stack="decoder", layer=layer, point=point, **selection)
    return traced(tiny_config(), capture, length)


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_hands_a_change_to_the_engine(route: str, plain: Site) -> None:
    item = {"point": "attn.hook_z", "layer": 1, "head": [3, 0], "positions": [-1, 0], "op": "zero"}
    changes = await sent(plain, item, route=route)
    num_tokens = len(plain.engine.submitted[-1].prompt_token_ids)
    assert len(plain.engine.submitted) == 1
    assert changes == (
        Intervention(
            stack="decoder", layer=1, point="attn.hook_z", op="set", value=0.0, heads=(3, 0),
            positions=(num_tokens - 1, 0),
        ),
    )  # fmt: skip


async def test_nothing_asked_for_is_nothing_changed(plain: Site) -> None:
    for route, body in ROUTES.items():
        assert (await plain.post(route, {**body, "interventions": None})).status_code == 200
        assert (await plain.post(route, {**body, "interventions": []})).status_code == 200
    assert not any(submitted.interventions for submitted in plain.engine.submitted)


async def test_full_names_lists_and_all_layers_are_understood_in_order(plain: Site) -> None:
    changes = await sent(
        plain,
        {"point": "blocks.2.hook_resid_post", "op": "scale", "value": 2},
        {"point": "hook_mlp_out", "layer": "all", "op": "zero"},
        {"point": "resid_pre.-1", "op": "zero"},
        {"point": "hook_embed", "op": "zero"},
    )
    assert [(change.point, change.layer) for change in changes] == [
        ("hook_resid_post", 2), ("hook_mlp_out", 0), ("hook_mlp_out", 1), ("hook_mlp_out", 2), ("hook_resid_pre", 2),
        ("hook_embed", None),
    ]  # fmt: skip
    assert (changes[0].op, changes[0].value) == ("scale", 2.0)
    assert {change.positions for change in changes} == {None}


async def test_every_choice_has_the_change(plain: Site) -> None:
    await sent(plain, {"point": "z.0", "op": "zero"}, route="/v1/completions", n=2, prompt=["a", "b"])
    assert all(len(s.interventions) == 1 for s in plain.engine.submitted)
    assert sum(isinstance(s.task, GenerateTask) for s in plain.engine.submitted) == 4


async def test_positions_of_the_encoders_points_count_in_its_input(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        body: dict[str, Any] = {"input": "abcdef", "points": ["logits"], "positions": "all", "decoder_input": "xy"}
        changes = await sent(
            at,
            {"point": "encoder.hook_resid_pre", "layer": -1, "positions": -1, "op": "zero"},
            {"point": "cross_attn.hook_v", "layer": 0, "positions": -1, "head": -1, "op": "zero"},
            {"point": "cross_attn.hook_pattern", "layer": 0, "positions": -1, "op": "patch", "value": [[0.25] * 6]},
            **body,
        )
        await refuses(
            at,
            "/v1/trace",
            {**body, "interventions": [{"point": "hook_resid_pre", "layer": 0, "positions": 3, "op": "zero"}]},
            "there is no position 3; accepted are 0 to 2",
        )
    assert [(c.stack, c.layer, c.heads, c.positions) for c in changes] == [
        ("encoder", 1, None, (5,)), ("decoder", 0, (3,), (5,)), ("decoder", 0, None, (2,))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"point": "hook_resid_psot", "layer": 0, "op": "zero"}, "similar names are hook_resid_post"),
        ({"point": "cross_attn.hook_z", "layer": 0, "op": "zero"}, "it has no cross attention"),
        ({"point": "ln1.hook_scale", "layer": 0, "op": "zero"}, "; similar points that can be changed: "),
        ({"point": "rot_k.0", "op": "zero"}, "similar points that can be changed: attn.hook_"),
        ({"point": "hook_resid_pre", "op": "zero"}, 'a layer, a list or "all" is accepted'),
        ({"point": "hook_resid_pre", "layer": 3, "op": "zero"}, "there is no layer 3; accepted are 0 to 2"),
        ({"point": "hook_resid_pre", "layer": [], "op": "zero"}, "at least 1 item"),
        ({"point": "blocks.0.hook_resid_pre", "layer": 1, "op": "zero"}, "already contains layer 0"),
        ({"point": "hook_embed", "layer": 1, "op": "zero"}, "is outside the blocks"),
        ({"point": "z.0", "head": 4, "op": "zero"}, "there is no head 4"),
        ({"point": "resid_pre.0", "head": 1, "op": "zero"}, "has no heads"),
        ({"point": "z.0", "positions": [4], "op": "zero"}, "there is no position 4; accepted are 0 to 3"),
        ({"point": "z.0", "positions": [], "op": "zero"}, "at least 1 item"),
        ({"point": "z.0", "op": "zero", "value": 1}, "accepts no value and no from"),
        ({"point": "z.0", "op": "mean", "value": 1}, "accepts no value"),
        ({"point": "z.0", "op": "scale"}, "needs value or from"),
        ({"point": "z.0", "op": "patch", "value": 1, "from": {"input": "x"}}, "cannot be combined"),
        ({"point": "z.0", "op": "explode"}, "'explode'"),
        ({"point": "z.0", "op": "temperature", "value": 2}, "'attn.hook_attn_scores' is accepted"),
        ({"point": "attn_scores.0", "op": "temperature", "value": -1}, "0 or more"),
        ({"point": "attn_scores.0", "op": "temperature", "value": [1]}, "0 or more"),
        ({"point": "pattern.0", "op": "mean"}, "have different lengths and no mean"),
        ({"point": "pattern.0", "op": "add", "from": {"input": "abcd"}}, "'patch' is"),
        ({"point": "resid_pre.0", "op": "add", "value": [1.0] * 7}, "shape [7] does not broadcast to hook_resid_pre, "
         "which is [position 4, d_model 8] here"),
        ({"point": "z.0", "head": [0, 1], "positions": [0], "op": "patch", "value": [[[1.0] * 2] * 3]},
         "[position 1, head 2, d_head 2]"),
        ({"point": "z.0", "op": "patch", "value": [[[[1.0]]]]}, "shape [1, 1, 1, 1] does not broadcast"),
        ({"point": "z.0", "op": "patch", "value": [[1.0], [1.0, 2.0]]}, "nested lists of numbers"),
        ({"point": "z.0", "op": "patch", "value": ["1"]}, "nested lists of numbers"),
        ({"point": "z.0", "op": "patch", "value": []}, "nested lists of numbers"),
        ({"point": "z.0", "op": "patch", "value": [True]}, "nested lists of numbers"),
        ({"point": "z.0", "op": "patch", "value": [1e39]}, "not finite in float32"),
        ({"point": "z.0", "op": "scale", "value": -1e39}, "not finite in float32"),
        ({"point": "z.0", "op": "patch", "value": {"data": "AAAA", "shape": [2]}}, "3 bytes; 8 are accepted"),
        ({"point": "z.0", "op": "patch", "value": {"data": "A*==", "shape": [2]}}, "not valid base64"),
        ({"point": "z.0", "op": "patch", "value": {"data": "\u00e9===", "shape": [2]}}, "not valid base64"),
        ({"point": "z.0", "op": "patch", "value": {"data": "AA==AAAA", "shape": [1]}}, "not valid base64"),
        ({"point": "z" * 129, "op": "zero"}, "at most 128 characters"),
        ({"point": "z.0", "op": "patch", "value": [0] * 16385},
         'a list of more than 16384 numbers; larger values are accepted as base64, {"data"'),
        ({"point": "z.0", "op": "patch", "value": [[0.5] * 64] * 257}, "more than 16384 numbers"),
        ({"point": "z.0", "op": "patch", "from": {"input": ["ab", "cd"]}}, "2 inputs; one is accepted"),
        ({"point": "z.0", "op": "patch", "from": {"input": "ab"}}, "shape [2, 4, 2] does not broadcast"),
        ({"point": "z.0", "op": "patch", "positions": -4, "from": {"input": "ab"}}, "there is no position -4"),
        ({"point": "z.0", "op": "patch", "from": {"input": "abcd", "point": "hook_resid_pre"}}, "a layer, a list"),
        ({"point": "z.0", "op": "patch", "from": {"input": "abcd", "point": "resid_pre.0"}}, "does not broadcast"),
        ({"point": "z.0", "op": "patch", "from": {"input": ""}}, "interventions[0].from.input: the prompt is empty"),
        ({"point": "z.0", "op": "patch", "from": {"input": "a" * 65}},
         "interventions[0].from.input: the prompt has 65 tokens; at most 64 are accepted."),
        ({"point": "z.0", "op": "patch", "from": {"input": [999]}}, "the token id 999 is out of range"),
        ({"point": "z.0", "op": "zero", "code": "import os"}, "no such field"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_400_before_anything_runs(item: Any, said: str, plain: Site) -> None:
    error = await plain.error("/v1/trace", {**TRACE, "interventions": [item]}, 400)
    assert plain.engine.submitted == []
    assert said in error["message"]
    assert error["param"].startswith("interventions") or error["code"] in {"invalid_value", "unknown_field"}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"point": "encoder.hook_resid_pre", "op": "zero"}, "layer: encoder.hook_resid_pre is in every block"),
        ({"point": "encoder.hook_embed", "layer": 0, "op": "zero"}, "layer: encoder.hook_embed is outside"),
        ({"point": "encoder.embed.0", "op": "zero"}, "'encoder.hook_embed' is accepted"),
        ({"point": "encoder.resid_pre.0", "head": 0, "op": "zero"}, "head: encoder.hook_resid_pre has no heads"),
        ({"point": "encoder.pattern.0", "op": "mean"}, "rows of encoder.attn.hook_pattern have different lengths"),
        ({"point": "encoder.z.0", "op": "temperature", "value": 2}, "'encoder.attn.hook_attn_scores' is accepted"),
        ({"point": "encoder.resid_pre.0", "op": "add", "value": [1.0] * 7}, "does not broadcast to "
         "encoder.hook_resid_pre, which"),
        ({"point": "z.0", "op": "temperature", "value": 2}, "not attn.hook_z; point 'attn.hook_attn_scores'"),
    ],
)  # fmt: skip
async def test_points_of_an_encoder_are_called_so(item: Any, said: str, tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        await refuses(at, "/v1/trace", {**TRACE, "decoder_input": "xy", "interventions": [item]}, said)


async def test_there_is_a_bound_on_their_number(plain: Site) -> None:
    items = [{"point": "z.0", "op": "zero"}] * (MAX_INTERVENTIONS + 1)
    assert len(await sent(plain, *items[:-1])) == MAX_INTERVENTIONS
    await refuses(plain, "/v1/trace", {**TRACE, "interventions": items}, param="interventions")


async def test_there_is_a_bound_on_how_often_attention_is_changed(plain: Site) -> None:
    """Check the limit. Without it, 64 changes of every pattern of a long prompt made one step take tens of seconds,
    for all its requests.
    """
    everywhere = {"point": "pattern", "layer": "all", "op": "scale", "value": 0.5}
    one_head = {"point": "attn_scores.0", "head": 1, "op": "temperature", "value": 2}
    await sent(plain, *[everywhere] * 4, {"point": "resid_pre", "layer": "all", "op": "scale", "value": 0.5})
    await sent(plain, *[one_head] * 48)  # four times 3 layers of 4 heads
    submitted = len(plain.engine.submitted)
    error = await plain.error("/v1/trace", {**TRACE, "interventions": [*[everywhere] * 4, one_head]}, 400)
    assert len(plain.engine.submitted) == submitted
    assert error["code"] == "too_many_changes"
    whole = 4 * 3 * 4 * 4 * 4
    assert f"they change {whole + 16} attention scores and weights; at most {whole} are accepted" in error["message"]


async def test_heads_of_grouped_keys_are_the_key_heads(tmp_path: Path) -> None:
    async with site(tmp_path, config=replace(tiny_config(), num_kv_heads=2)) as at:
        (change,) = await sent(at, {"point": "v.0", "head": -1, "op": "zero"})
        error = await at.error(
            "/v1/trace", {**TRACE, "interventions": [{"point": "v.0", "head": 2, "op": "zero"}]}, 400
        )
    assert change.heads == (1,)
    assert "there is no key head 2; accepted are 0 to 1" in error["message"]


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
        ({**SCORES, "point": "attn.hook_pattern", "value": [[None] * 4] * 4}, "is not an array"),
        ({**SCORES, "op": "scale", "value": [None]}, "is not an array"),
        ({**SCORES, "value": [None, "1"]}, "is not an array"),
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
    monkeypatch.setattr("lightwell.server.generation.interventions.reading.MAX_VALUE_BYTES", 100)
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
    monkeypatch.setattr("lightwell.server.generation.interventions.reading.MAX_SOURCE_TOKENS", 5)
    same = {"point": "resid_pre.0", "op": "mean", "from": {"input": ["abc", "de"]}}
    more = {"point": "resid_pre.1", "op": "patch", "positions": 0, "from": {"input": "f"}}
    await sent(plain, same, same)  # equal inputs are one pass
    error = await plain.error("/v1/trace", {**TRACE, "interventions": [same, more]}, 400)
    assert len(plain.engine.submitted) == 3
    assert error["code"] == "sources_too_long"
    assert "have 6 tokens, where equal inputs count once; at most 5 are accepted" in error["message"]


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
