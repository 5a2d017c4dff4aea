"""Conversion of selectors to absolute indices, and the size of the selected values."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from server.generation.interventions.selectors import (
    AttentionPlan,
    check_answer_size,
    plan_attention,
    resolve,
    select_heads,
)
from server.http.errors import BadRequest, PayloadTooLarge
from server.schemas.inspect.attention import AttentionRequest
from tests.server.serving import tiny_config


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
    with pytest.raises(ValidationError, match='"all" or a range such as "0:2" or "-4:" is accepted'):
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
