"""Interventions in request bodies: the arguments of the engine, and requests that are rejected before any pass."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.request import GenerateTask, Intervention, PointCapture
from server.schemas.inspect.interventions import MAX_INTERVENTIONS
from tests.server.dialects.routes import refuses
from tests.server.fake_client import traced
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


async def test_a_temperature_divides_scores(plain: Site) -> None:
    (change,) = await sent(plain, {"point": "attn_scores", "layer": 0, "op": "temperature", "value": 0})
    assert (change.point, change.op, change.value) == ("attn.hook_attn_scores", "temperature", 0.0)


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
        ({"point": "hook_resid_psot", "layer": 0, "op": "zero"}, "near ones are hook_resid_post"),
        ({"point": "cross_attn.hook_z", "layer": 0, "op": "zero"}, "it has no cross attention"),
        ({"point": "ln1.hook_scale", "layer": 0, "op": "zero"}, "can be read and not changed; near ones that can be: "),
        ({"point": "rot_k.0", "op": "zero"}, "near ones that can be: attn.hook_"),
        ({"point": "hook_resid_pre", "op": "zero"}, 'a layer, a list or "all" is accepted'),
        ({"point": "hook_resid_pre", "layer": 3, "op": "zero"}, "there is no layer 3; accepted are 0 to 2"),
        ({"point": "hook_resid_pre", "layer": [], "op": "zero"}, "at least 1 item"),
        ({"point": "blocks.0.hook_resid_pre", "layer": 1, "op": "zero"}, "gives layer 0 already"),
        ({"point": "hook_embed", "layer": 1, "op": "zero"}, "is outside the blocks"),
        ({"point": "z.0", "head": 4, "op": "zero"}, "there is no head 4"),
        ({"point": "resid_pre.0", "head": 1, "op": "zero"}, "has no heads"),
        ({"point": "z.0", "positions": [4], "op": "zero"}, "there is no position 4; accepted are 0 to 3"),
        ({"point": "z.0", "positions": [], "op": "zero"}, "at least 1 item"),
        ({"point": "z.0", "op": "zero", "value": 1}, "accepts no value and no from"),
        ({"point": "z.0", "op": "mean", "value": 1}, "takes no value"),
        ({"point": "z.0", "op": "scale"}, "needs value or from"),
        ({"point": "z.0", "op": "patch", "value": 1, "from": {"input": "x"}}, "exclude each other"),
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
        ({"point": "z.0", "op": "patch", "value": {"data": "A*==", "shape": [2]}}, "no base64"),
        ({"point": "z.0", "op": "patch", "value": {"data": "\u00e9===", "shape": [2]}}, "no base64"),
        ({"point": "z.0", "op": "patch", "value": {"data": "AA==AAAA", "shape": [1]}}, "no base64"),
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
        ({"point": "z.0", "op": "patch", "from": {"input": [999]}}, "there is no token 999"),
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
