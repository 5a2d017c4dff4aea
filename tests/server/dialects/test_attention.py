"""POST /v1/attention, the conversion of its selectors to absolute indices, and the size of the selected values."""

import asyncio
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load as load_safetensors

from lightwell.server.generation.interventions.selectors import (
    AttentionPlan,
    check_answer_size,
    plan_attention,
    resolve,
    select_heads,
)
from lightwell.server.http.errors import BadRequest, PayloadTooLarge
from lightwell.server.schemas.inspect.attention import AttentionRequest
from tests.server.dialects.routes import refuses
from tests.server.fake_client import NUM_HEADS, NUM_LAYERS, FakeEngine, number
from tests.server.serving import Site, site, tiny_config

PATH = "/v1/attention"


def pattern(queries: Any, keys: Any, layers: Any = range(NUM_LAYERS), heads: Any = range(NUM_HEADS)) -> Any:
    rows = [[[[number(la, h, q, k) for k in keys] for q in queries] for h in heads] for la in layers]
    return np.array(rows, np.float32)


async def ask(at: Site, **body: Any) -> list[Any]:
    answer = await at.post(PATH, {"input": "abc", **body})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def test_by_default_every_layer_head_and_position_is_returned(plain: Site) -> None:
    (entry,) = await ask(plain)
    assert entry["tokens"] == ["a", "b", "c"]
    assert entry["token_ids"] == [97, 98, 99]
    assert entry["offsets"] == [[0, 1], [1, 2], [2, 3]]
    assert entry["axes"] == ["layer", "head", "query", "key"]
    assert entry["shape"] == [NUM_LAYERS, NUM_HEADS, 3, 3]
    assert np.array_equal(np.array(entry["attention"], np.float32), pattern(range(3), range(3)))
    (of_ids,) = await ask(plain, input=[97, 98], layers=0)
    assert (of_ids["tokens"], of_ids["offsets"]) == (["a", "b"], None)


async def test_a_selection_comes_in_the_order_asked_for(plain: Site) -> None:
    (entry,) = await ask(plain, layers=[-1, 0], heads=2, query_positions=[2, 1], key_positions=[1, 0])
    assert (entry["layers"], entry["heads"]) == ([2, 0], [2])
    assert (entry["query_positions"], entry["key_positions"]) == ([2, 1], [1, 0])
    assert np.array_equal(np.array(entry["attention"], np.float32), pattern([2, 1], [1, 0], [2, 0], [2]))


async def test_columns_are_the_transpose(plain: Site) -> None:
    (rows,) = await ask(plain, query_positions=[1, 2])
    (columns,) = await ask(plain, query_positions=[1, 2], orientation="columns")
    assert columns["axes"] == ["layer", "head", "key", "query"]
    assert columns["shape"] == [NUM_LAYERS, NUM_HEADS, 3, 2]
    assert np.array_equal(np.swapaxes(np.array(rows["attention"]), -1, -2), np.array(columns["attention"]))


async def test_reduce_drops_the_head_axis(plain: Site) -> None:
    (entry,) = await ask(plain, reduce="mean")
    assert entry["axes"] == ["layer", "query", "key"]
    expected = pattern(range(3), range(3)).mean(axis=1)
    assert np.allclose(np.array(entry["attention"], np.float32), expected)


async def test_top_k_gives_values_and_indices_padded_with_minus_one(plain: Site) -> None:
    (entry,) = await ask(plain, layers=0, heads=1, query_positions=-1, top_k=4)
    assert entry["axes"] == ["layer", "head", "query", "k"]
    assert "attention" not in entry
    assert entry["indices"] == [[[[2, 1, 0, -1]]]]
    assert entry["values"][0][0][0][0] == number(0, 1, 2, 2)


async def test_a_masked_score_is_null_in_json_and_minus_infinity_in_binary(plain: Site) -> None:
    body = {"input": "abc", "layers": 0, "heads": 0, "kind": "scores"}
    (entry,) = await ask(plain, **body)
    binary = await plain.post(PATH, body, headers={"accept": "application/vnd.safetensors"})
    assert entry["attention"][0][0][0][1:] == [None, None]
    assert np.isneginf(load_safetensors(binary.content)["attention.0"][0, 0, 0, 1:]).all()


async def test_many_inputs_keep_their_own_lengths(plain: Site) -> None:
    answer = (await plain.post(PATH, {"input": ["a", "abcd"], "layers": 0})).json()
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert [entry["shape"][-1] for entry in answer["data"]] == [1, 4]
    assert answer["usage"] == {
        "prompt_tokens": 5, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip


async def test_a_completion_follows_its_input_and_there_is_one_for_each(plain: Site) -> None:
    (entry,) = await ask(plain, input="ab", completion="cd", layers=0)
    (from_ids,) = await ask(plain, input=[97, 98], completion=[99], layers=0)
    assert entry["tokens"] == ["a", "b", "c", "d"]
    assert entry["offsets"][2:] == [[2, 3], [3, 4]]
    assert from_ids["token_ids"] == [97, 98, 99]
    await refuses(plain, PATH, {"input": ["a", "b"], "completion": "c"}, param="completion")


async def test_a_conversation_is_read_as_the_template_writes_it(plain: Site) -> None:
    (entry,) = await ask(plain, input=[{"role": "user", "content": "x"}], layers=0)
    assert "".join(entry["tokens"]) == "<user>x"


async def test_safetensors_hold_a_tensor_and_the_tokens_of_each_input(plain: Site) -> None:
    headers = {"accept": "application/vnd.safetensors"}
    answer = await plain.post(PATH, {"input": ["ab", "abc"], "dtype": "float16"}, headers=headers)
    assert answer.headers["content-type"] == "application/vnd.safetensors"
    loaded = load_safetensors(answer.content)
    assert loaded["attention.1"].dtype == np.float16
    assert np.array_equal(loaded["attention.1"], pattern(range(3), range(3)).astype(np.float16))
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    assert json.loads(header["__metadata__"]["attention.0"])["tokens"] == ["a", "b"]


async def test_npy_is_the_bare_array_of_one_input(plain: Site) -> None:
    headers = {"accept": "application/x-npy"}
    answer = await plain.post(PATH, {"input": "abc", "orientation": "columns"}, headers=headers)
    refused = await plain.post(PATH, {"input": ["a", "b"]}, headers=headers)
    assert len(plain.engine.submitted) == 1
    assert np.array_equal(np.load(io.BytesIO(answer.content)), np.swapaxes(pattern(range(3), range(3)), -1, -2))
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"layers": 3}, "layers"),
        ({"heads": [0, 9]}, "heads"),
        ({"query_positions": 3}, "query_positions"),
        ({"key_positions": [-4]}, "key_positions"),
        ({"part": "encoder"}, "part"),
        ({"part": "cross"}, "part"),
        ({"decoder_input": "x"}, "decoder_input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "x" * 65}, "input"),
    ],
)
async def test_what_the_model_or_the_input_lacks_is_400(fields: dict[str, Any], param: str, plain: Site) -> None:
    await refuses(plain, PATH, {"input": "abc", **fields}, param=param)
    assert plain.engine.submitted == []


async def test_one_request_of_many_inputs_holds_no_more_places_than_can_run(tmp_path: Path) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    async with site(tmp_path, engine, max_num_seqs=3) as at:
        asking = asyncio.create_task(ask(at, input=["a"] * 9, layers=0, heads=0))
        while len(engine.submitted) < 3:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(engine.submitted) == 3
        assert engine.gate is not None
        engine.gate.set()
        assert len(await asking) == 9


async def test_more_inputs_than_are_run_together_are_all_answered_in_order(plain: Site) -> None:
    texts = ["a" * (1 + i % 5) for i in range(150)]
    entries = await ask(plain, input=texts, layers=0, heads=0)
    assert [len(entry["tokens"]) for entry in entries] == [len(text) for text in texts]


def plan(length: int = 10, **fields: Any) -> AttentionPlan:
    request = AttentionRequest.model_validate({"input": "x", **fields})
    return plan_attention(request, select_heads(request, tiny_config()), length, length, "decoder")


@given(st.integers(1, 50), st.none() | st.integers(-60, 60), st.none() | st.integers(-60, 60))
def test_a_range_selects_what_a_python_slice_selects(count: int, start: int | None, end: int | None) -> None:
    written = ":".join("" if each is None else str(each) for each in (start, end))
    expected = tuple(range(count)[start:end])
    if expected:
        assert resolve(written, count, "layers", "layer") == expected
    else:
        with pytest.raises(BadRequest, match=f"'{written}' chooses none of {count} layers"):
            resolve(written, count, "layers", "layer")


@pytest.mark.parametrize("text", ["al", "0:2:1", "0-2", "1", "-:", ":-", "0: 2", "9999999999:"])
def test_a_selector_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match='"all", an index, a list, or a range such as "0:2" or "-4:" is accepted'):
        AttentionRequest.model_validate({"input": "x", "layers": text})


@given(st.integers(1, 50), st.data())
def test_selected_indices_are_those_of_a_python_list_in_the_order_given(count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    written = [index - count if data.draw(st.booleans()) else index for index in chosen]
    assert resolve(written, count, "f", "thing") == tuple(list(range(count))[index] for index in written)


@pytest.mark.parametrize("index", [3, -4, 2**31 - 1])
def test_an_index_out_of_range_is_named_with_the_range(index: int) -> None:
    with pytest.raises(BadRequest, match=f"no layer {index}; accepted are 0 to 2, and -3 to -1") as caught:
        resolve([0, index], 3, "layers", "layer")
    assert caught.value.param == "layers"


def test_an_index_given_twice_is_refused_even_in_two_spellings() -> None:
    with pytest.raises(BadRequest, match="layer 2 is given twice"):
        resolve([2, -1], 3, "layers", "layer")


def test_layers_and_heads_make_a_grid_layer_by_layer() -> None:
    heads = plan(layers=[2, 0], heads=[1, -1]).heads
    assert heads.pairs == ((2, 1), (2, 3), (0, 1), (0, 3))
    assert (heads.axes, heads.shape) == (("layer", "head"), (2, 2))


def test_pairs_keep_their_order_on_one_axis() -> None:
    heads = plan(pairs=[[2, -1], [0, 0]]).heads
    assert heads.pairs == ((2, 3), (0, 0))
    assert (heads.axes, heads.shape) == (("pair",), (2,))


def test_reduce_leaves_the_layers() -> None:
    heads = plan(pairs=[[2, 0], [0, 0], [2, 1]], reduce="mean").heads
    assert (heads.axes, heads.shape, heads.layers) == (("layer",), (2,), (2, 0))


def test_all_positions_are_left_to_the_engine_and_named_for_the_answer() -> None:
    whole = plan(length=4)
    assert (whole.capture.queries, whole.capture.keys) == (None, None)
    assert (whole.queries, whole.keys) == ((0, 1, 2, 3), (0, 1, 2, 3))


def test_positions_count_from_the_end_of_their_own_input() -> None:
    assert plan(length=4, query_positions=-1).capture.queries == (3,)
    assert plan(length=9, query_positions=-1).capture.queries == (8,)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({}, 3 * 4 * 100),
        ({"layers": 0, "heads": 0}, 100),
        ({"reduce": "max"}, 3 * 100),
        ({"query_positions": [0, 1]}, 3 * 4 * 20),
        ({"top_k": 3}, 3 * 4 * 30),
        ({"resize": 2}, 3 * 4 * 4),
    ],
)
def test_the_size_follows_what_is_asked(fields: dict[str, Any], values: int) -> None:
    assert plan(**fields).num_values == values


@pytest.mark.parametrize(
    ("fields", "size"), [({}, 4800), ({"dtype": "float16"}, 2400), ({"dtype": "uint8"}, 1200), ({"top_k": 10}, 9600)]
)
def test_captured_bytes_are_those_of_the_arrays(fields: dict[str, Any], size: int) -> None:
    assert plan(**fields).capture_bytes == size


def test_a_refusal_tells_the_estimate_and_the_limit() -> None:
    with pytest.raises(PayloadTooLarge, match=r"about 4800 bytes; at most 1000") as caught:
        check_answer_size([plan()], "binary", 1000)
    assert caught.value.code == "answer_too_large"


@given(st.integers(40, 16_000), st.integers(1, 30))
def test_the_selection_that_a_refusal_proposes_fits(limit: int, length: int) -> None:
    try:
        assert check_answer_size([plan(length=length)], "json", limit) <= limit
    except PayloadTooLarge as error:
        proposals = error.message.partition("Any of these fits: ")[2].removesuffix(".").split("; ")
        for proposal in proposals:
            if proposal.startswith('"') and "..." not in proposal:
                less = plan(length=length, **json.loads("{" + proposal + "}"))
                assert check_answer_size([less], "json", limit) <= limit


def test_a_binary_answer_is_proposed_where_it_would_fit() -> None:
    with pytest.raises(PayloadTooLarge, match=r"Accept: application/vnd\.safetensors"):
        check_answer_size([plan()], "json", 5000)


def test_several_inputs_are_added_up() -> None:
    plans = [plan(length=3), plan(length=5)]
    assert check_answer_size(plans, "binary", 10**6) == math.ceil(12 * (9 + 25) * 4)
