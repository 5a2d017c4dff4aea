"""POST /v1/trace: its answers, and the plan with their size before the pass."""

import asyncio
import base64
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import points_of, sizes, stacks
from lightwell.server.engine.messages.request import PointCapture
from lightwell.server.generation.interventions.trace_plan import Lengths, check_trace_size, choose_points, plan_inputs
from lightwell.server.http.errors import PayloadTooLarge
from lightwell.server.schemas.inspect.trace import TraceRequest
from tests import tiny
from tests.server.dialects.routes import refuses
from tests.server.fake_client import NUM_HEADS, NUM_LAYERS, FakeEngine, traced
from tests.server.serving import START, Site, build_site, site, tiny_config, tiny_encoder, tiny_encoder_decoder
from tests.support.examples import examples

PATH = "/v1/trace"


async def ask(at: Site, **body: Any) -> list[Any]:
    answer = await at.post(PATH, {"input": "abc", **body})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def expected(name: str, layer: int | None, length: int = 3, **selection: Any) -> Any:
    point = PointCapture(name=name, stack="decoder", layer=layer, point=name, **selection)
    return traced(tiny_config(), point, length)


async def test_a_full_name_gives_that_point_with_its_axes(plain: Site) -> None:
    (entry,) = await ask(plain, points=["blocks.1.attn.hook_q"])
    assert (entry["object"], entry["index"]) == ("trace", 0)
    assert (entry["tokens"], entry["token_ids"]) == (["a", "b", "c"], [97, 98, 99])
    assert entry["offsets"] == [[0, 1], [1, 2], [2, 3]]
    point = entry["points"]["blocks.1.attn.hook_q"]
    assert point["axes"] == ["position", "head", "d_head"]
    assert (point["shape"], point["dtype"], point["layer"]) == ([3, NUM_HEADS, 2], "float32", 1)
    assert (point["heads"], point["positions"]) == ([0, 1, 2, 3], [0, 1, 2])
    assert np.array_equal(np.array(point["data"], np.float32), expected("attn.hook_q", 1))


async def test_a_short_name_gives_an_entry_for_each_layer_asked_for(plain: Site) -> None:
    (every,) = await ask(plain, points=["hook_resid_post"])
    (some,) = await ask(plain, points=["resid_post", "hook_embed"], layers=[-1, 0])
    (one,) = await ask(plain, points=["resid_post.2"])
    assert list(every["points"]) == [f"blocks.{i}.hook_resid_post" for i in range(NUM_LAYERS)]
    assert list(some["points"]) == ["blocks.2.hook_resid_post", "blocks.0.hook_resid_post", "hook_embed"]
    assert some["points"]["hook_embed"]["layer"] is None
    assert list(one["points"]) == ["blocks.2.hook_resid_post"]


async def test_a_selection_comes_in_the_order_asked_for(plain: Site) -> None:
    (entry,) = await ask(
        plain, points=["blocks.0.attn.hook_pattern"], heads=[3, -4], positions=[-1, 0], key_positions=[1]
    )
    point = entry["points"]["blocks.0.attn.hook_pattern"]
    assert point["axes"] == ["head", "query", "key"]
    assert (point["heads"], point["positions"], point["key_positions"]) == ([3, 0], [2, 0], [1])
    numbers = expected("attn.hook_pattern", 0, heads=(3, 0), positions=(2, 0), keys=(1,))
    assert np.array_equal(np.array(point["data"], np.float32), numbers)


async def test_ranges_select_layers_heads_and_positions(plain: Site) -> None:
    (entry,) = await ask(
        plain, points=["attn.hook_pattern"], layers="1:", heads=":2", positions="-2:", key_positions="1:2"
    )
    error = await plain.error("/v1/trace", {"input": "abc", "points": ["hook_q"], "layers": "7:9"}, 400)
    assert list(entry["points"]) == ["blocks.1.attn.hook_pattern", "blocks.2.attn.hook_pattern"]
    point = entry["points"]["blocks.2.attn.hook_pattern"]
    assert (point["heads"], point["positions"], point["key_positions"]) == ([0, 1], [1, 2], [1])
    assert error["message"] == "layers: '7:9' chooses none of 3 layers; at least one is accepted."


SELECTORS = {"head": "heads", "kv_head": "heads", "position": "positions", "query": "positions", "key": "key_positions"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return build_site(tmp_path_factory.mktemp("site"), FakeEngine())


@settings(max_examples=20)
@given(data=st.data())
def test_what_is_selected_is_the_slice_of_the_whole(data: st.DataObject, shared: Site) -> None:
    point = data.draw(st.sampled_from([p for p in points_of(tiny_config(), "decoder") if p.in_block]))
    chosen = {
        SELECTORS[axis]: data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
        for axis, size in zip(point.axes, sizes(tiny_config(), "decoder", point, 3), strict=True)
        if axis in SELECTORS
    }

    async def read(**selection: Any) -> Any:
        (entry,) = await ask(shared, points=[f"{point.name}.1"], encoding_format="base64", **selection)
        return array(entry["points"][f"blocks.1.{point.name}"])

    whole, part = (asyncio.run(read(**selection)) for selection in ({}, chosen))
    for axis, name in enumerate(point.axes):
        if name in SELECTORS:
            whole = whole.take(chosen[SELECTORS[name]], axis)
    assert np.array_equal(whole, part)


def array(point: Any) -> Any:
    return np.frombuffer(base64.b64decode(point["data"]), np.dtype(point["dtype"])).reshape(point["shape"])


async def test_key_heads_are_counted_where_the_point_has_them(tmp_path: Path) -> None:
    async with site(tmp_path, config=replace(tiny_config(), num_kv_heads=2)) as at:
        (entry,) = await ask(at, points=["k.0", "rot_q.0"], heads=-1)
        error = await at.error(PATH, {"input": "abc", "points": ["q.0", "k.0"], "heads": 3}, 400)
    points = entry["points"]
    assert (points["blocks.0.attn.hook_k"]["heads"], points["blocks.0.attn.hook_rot_q"]["heads"]) == ([1], [3])
    assert error["param"] == "heads"
    assert "there is no key head 3; accepted are 0 to 1" in error["message"]


async def test_safetensors_have_a_tensor_for_each_input_and_point(plain: Site) -> None:
    body = {"input": ["ab", "abc"], "points": ["hook_resid_mid", "hook_pos_embed"], "layers": 1, "dtype": "float16"}
    answer = await plain.post(PATH, body, headers={"accept": "application/vnd.safetensors"})
    loaded = load_safetensors(answer.content)
    assert set(loaded) == {f"{i}/{name}" for i in (0, 1) for name in ("blocks.1.hook_resid_mid", "hook_pos_embed")}
    assert np.array_equal(loaded["1/blocks.1.hook_resid_mid"], expected("hook_resid_mid", 1, dtype="float16"))
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    entry = json.loads(header["__metadata__"]["trace.0"])
    assert entry["tokens"] == ["a", "b"]
    assert entry["points"]["hook_pos_embed"]["axes"] == ["position", "d_model"]


async def test_npy_is_the_bare_array_of_one_point(plain: Site) -> None:
    headers = {"accept": "application/x-npy"}
    answer = await plain.post(PATH, {"input": "abc", "points": ["z.0"]}, headers=headers)
    refused = await plain.post(PATH, {"input": "abc", "points": ["attn.hook_z"]}, headers=headers)
    assert len(plain.engine.submitted) == 1
    assert np.array_equal(np.load(io.BytesIO(answer.content)), expected("attn.hook_z", 0))
    assert refused.status_code == 400


async def test_ndjson_has_a_line_a_point(plain: Site) -> None:
    body = {"input": ["a", "ab"], "points": ["hook_mlp_out"], "layers": [0, 2]}
    answer = await plain.post(PATH, body, headers={"accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line.get("point") for line in lines] == [None, "blocks.0.hook_mlp_out", "blocks.2.hook_mlp_out"] * 2
    assert (lines[0]["tokens"], lines[3]["tokens"]) == (["a"], ["a", "b"])
    assert np.array_equal(np.array(lines[5]["data"], np.float32), expected("hook_mlp_out", 2, length=2))


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"points": ["hook_resid_psot"]}, "points", "similar names are hook_resid_post"),
        ({"points": ["cross_attn.hook_pattern"]}, "points", "it has no cross attention"),
        ({"points": ["ln1_post.hook_scale"]}, "points", "placed 'pre'"),
        ({"points": ["mlp.hook_pre_linear"]}, "points", "its mlp is not gated"),
        ({"points": ["encoder.hook_embed"]}, "points", "this model has no encoder"),
        ({"points": ["blocks.3.hook_resid_pre"]}, "points", "there is no layer 3; accepted are 0 to 2"),
        ({"points": []}, "points", "at least 1 item"),
        ({"points": ["q.0", "blocks.0.attn.hook_q"]}, "points", "given twice"),
        ({"points": ["hook_resid_pre"], "layers": []}, "layers", "at least 1 item"),
        ({"points": ["hook_resid_pre"], "layers": 3}, "layers", "there is no layer 3"),
        ({"points": ["q.0"], "heads": [4]}, "heads", "there is no head 4"),
        ({"points": ["q.0"], "heads": []}, "heads", "at least 1 item"),
        ({"points": ["q.0"], "positions": [3]}, "positions", "there is no position 3; accepted are 0 to 2"),
        ({"points": ["q.0"], "positions": []}, "positions", "at least 1 item"),
        ({"points": ["pattern.0"], "key_positions": -4}, "key_positions", "there is no position -4"),
        ({"points": ["hook_embed"], "layers": 0}, "layers", "no point of this request has such an axis"),
        ({"points": ["hook_embed"], "heads": 0}, "heads", "no point of this request has such an axis"),
        ({"points": ["q.0"], "key_positions": 0}, "key_positions", "no point of this request has such an axis"),
        ({"points": ["q.0"], "decoder_input": "x"}, "decoder_input", "has no separate decoder input"),
        ({"points": ["q.0"], "dtype": "uint8"}, "dtype", "'uint8'"),
    ],
)
async def test_what_the_model_or_the_input_lacks_is_400(
    fields: dict[str, Any], param: str, said: str, plain: Site
) -> None:
    await refuses(plain, PATH, {"input": "abc", **fields}, said, param=param)
    assert plain.engine.submitted == []


async def test_an_encoder_has_no_logits_and_continues_nothing(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder()) as at:
        (entry,) = await ask(at, points=["ln1.hook_out", "hook_token_type_embed"])
        (first,) = at.engine.submitted
        await refuses(at, PATH, {"input": "abc", "points": ["logits"]}, "no head follows its last block")
        await refuses(at, PATH, {"input": "abc", "points": ["q"], "completion": "d"}, param="completion")
    assert "blocks.2.ln1.hook_out" in entry["points"]
    assert {point.stack for point in first.task.points} == {"encoder"}


async def test_both_stacks_of_an_encoder_decoder_are_shown_at_their_own_lengths(tmp_path: Path) -> None:
    names = ["encoder.attn.hook_pattern.1", "cross_attn.hook_pattern.2", "cross_attn.hook_k.0", "q.0", "logits"]
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        (entry,) = await ask(at, input="abcd", decoder_input="x", completion=[121, 122], points=names)
        (submitted,) = at.engine.submitted
    assert bytes(submitted.encoder_token_ids) == b"abcd"
    assert submitted.prompt_token_ids == (START, 120, 121, 122)
    assert (entry["token_ids"], entry["encoder_token_ids"]) == ([START, 120, 121, 122], [97, 98, 99, 100])
    assert entry["encoder_offsets"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    shapes = {name: point["shape"] for name, point in entry["points"].items()}
    assert shapes == {
        "encoder.blocks.1.attn.hook_pattern": [2, 4, 4],
        "decoder.blocks.2.cross_attn.hook_pattern": [4, 4, 4],
        "decoder.blocks.0.cross_attn.hook_k": [4, 4, 2],
        "decoder.blocks.0.attn.hook_q": [4, 4, 2],
        "decoder.logits": [4, 257],
    }


async def test_the_layers_of_an_encoder_are_its_own(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        (entry,) = await ask(at, points=["encoder.hook_resid_post"])
        await refuses(at, PATH, {"input": "a", "points": ["encoder.hook_resid_post"], "layers": 2}, param="layers")
        await refuses(at, PATH, {"input": "a" * 41, "points": ["q"]}, "at most 40 are accepted")
    assert list(entry["points"]) == ["encoder.blocks.0.hook_resid_post", "encoder.blocks.1.hook_resid_post"]
    assert entry["token_ids"] == [START]


async def test_a_first_block_without_a_norm_is_left_out_of_all(tmp_path: Path) -> None:
    config = replace(tiny_encoder(), first_attention_norm=False)
    async with site(tmp_path, config=config) as at:
        (entry,) = await ask(at, points=["ln1.hook_scale"])
        await refuses(at, PATH, {"input": "a", "points": ["ln1.hook_scale"], "layers": [0]}, "first block has no norm")
        points = {each["short"]: each for each in (await at.http.get("/v1/capabilities")).json()["points"]}
    assert list(entry["points"]) == ["blocks.1.ln1.hook_scale", "blocks.2.ln1.hook_scale"]
    assert [points[name]["layers"] for name in ("ln1.hook_scale", "ln2.hook_scale")] == [[1, 2], [0, 1, 2]]
    assert points["hook_embed"]["layers"] == []


async def test_an_answer_that_would_be_too_large_is_413_with_selections_that_fit(tmp_path: Path) -> None:
    body = {"input": "a" * 40, "points": ["attn.hook_pattern"]}
    async with site(tmp_path, max_response_bytes=20_000) as at:
        error = await at.error(PATH, body, 413)
        assert at.engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1
        assert f"about {3 * 4 * 40 * 40 * 14 + 26 * 40} bytes" in error["message"]
        proposals = error["message"].partition("Any of these fits: ")[2].removesuffix(".").split("; ")
        assert {proposal.partition(":")[0] for proposal in proposals} >= {'"positions"'}
        for proposal in proposals:
            assert (await at.post(PATH, {**body, **json.loads("{" + proposal + "}")})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"points": ["ln1.hook_scale"], "layers": 0, "positions": -1}),
        ("/v1/attention", {"layers": 0, "heads": 0, "query_positions": -1, "key_positions": 0}),
        ("/v1/embeddings", {"pooling": "none", "dimensions": 1}),
    ],
)
async def test_the_tokens_of_an_answer_count_for_its_size(path: str, body: Any, tmp_path: Path) -> None:
    body |= {"input": ["the cat sat"] * 40}
    async with site(tmp_path) as at:
        size = len((await at.post(path, body)).content)
    async with site(tmp_path, max_response_bytes=size // 2) as at:
        await refuses(at, path, body, code="answer_too_large", status=413)
        assert at.engine.submitted == []
    async with site(tmp_path, max_response_bytes=2 * size) as at:
        assert (await at.post(path, body)).status_code == 200


async def test_the_budget_is_asked_for_the_bytes_of_the_arrays(plain: Site) -> None:
    await ask(plain, points=["pattern.0", "hook_embed"], dtype="float16")
    assert plain.engine.submitted[0].capture_bytes == (4 * 3 * 3 + 3 * 8) * 2
    assert plain.engine.held == [(4 * 3 * 3 + 3 * 8) * 2]


@pytest.fixture(scope="module", params=["llama-gqa", "bart", "bert"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_config(tiny.make_variant(request.param, tmp_path_factory.mktemp("model")))


@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_estimate_is_the_size_of_the_plans(config: ModelConfig, data: st.DataObject) -> None:
    names = [
        f"encoder.{point.name}" if stack == "encoder" and config.kind == "encoder-decoder" else point.name
        for stack in stacks(config)
        for point in points_of(config, stack)
    ]
    lengths = data.draw(st.lists(st.builds(Lengths, st.integers(3, 9), st.integers(3, 9)), min_size=1, max_size=4))
    selector = st.sampled_from(["all", 1, -2, [0], [2, 0]])
    fields = {
        "input": "x",
        "points": data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=6, unique=True)),
        "positions": data.draw(selector),
        "dtype": data.draw(st.sampled_from(["float32", "float16"])),
    }
    asked = TraceRequest.model_validate(fields)
    chosen = choose_points(asked, config)
    if any("key" in one.point.axes for one in chosen):
        asked = asked.model_copy(update={"key_positions": data.draw(selector)})
    if any({"head", "kv_head"} & {*one.point.axes} for one in chosen):
        asked = asked.model_copy(update={"heads": data.draw(st.sampled_from(["all", 0, [1, 0]]))})
        chosen = choose_points(asked, config)
    plans = plan_inputs(asked, chosen, config, lengths)
    size = math.ceil(sum(point.num_bytes for plan in plans for point in plan))
    check_trace_size(asked, chosen, config, lengths, "binary", size, 0)
    with pytest.raises(PayloadTooLarge, match=f"about {size} bytes"):
        check_trace_size(asked, chosen, config, lengths, "binary", size - 1, 0)
    with pytest.raises(PayloadTooLarge, match=f"about {size + 9} bytes"):
        check_trace_size(asked, chosen, config, lengths, "binary", size + 8, 9)


def test_inputs_of_one_length_share_a_plan(config: ModelConfig) -> None:
    """Share plans, since a request may have thousands of inputs and points: a plan for each pair would take minutes."""
    asked = TraceRequest.model_validate({"input": "x", "points": ["hook_resid_post"]})
    chosen = choose_points(asked, config)
    plans = plan_inputs(asked, chosen, config, [Lengths(5, 6), Lengths(7, 6), Lengths(5, 6)])
    assert plans[0] is plans[2]
    assert plans[0] is not plans[1]
