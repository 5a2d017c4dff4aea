"""Arrays in answers, read back by other libraries."""

import base64
import io
import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

from lightwell.server.http import tensor_formats
from lightwell.server.http.errors import BadRequest, NotAcceptable
from lightwell.server.http.tensor_formats import (
    Entry,
    Format,
    JsonArray,
    body_pieces,
    check_npy,
    json_parts,
    json_pieces,
    negotiate,
    paced,
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, Format.JSON),
        ("", Format.JSON),
        ("*/*", Format.JSON),
        ("application/*", Format.JSON),
        ("application/json", Format.JSON),
        ("application/vnd.safetensors", Format.SAFETENSORS),
        ("Application/X-NPY", Format.NPY),
        ("application/x-ndjson; charset=utf-8", Format.NDJSON),
        ("text/html, application/vnd.safetensors;q=0.5, */*;q=0.1", Format.SAFETENSORS),
        ("application/json;q=0, */*", Format.SAFETENSORS),
        ("application/json;q=0.2, application/x-npy;q=0.9", Format.NPY),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str | None, wanted: Format) -> None:
    assert negotiate(accept) is wanted


@pytest.mark.parametrize("accept", ["text/html", "application/x-pickle", "application/json;q=0", "image/*"])
def test_a_format_that_does_not_exist_is_refused_with_those_that_do(accept: str) -> None:
    with pytest.raises(NotAcceptable, match=r"accepted: application/json, application/vnd\.safetensors"):
        negotiate(accept)


def entry(value: Any, index: int = 0, **fields: Any) -> Entry:
    described = {"object": "attention", "index": index, "axes": ["layer", "query", "key"], "layers": [4, 2], **fields}
    return Entry(index, described, {"attention": value})


def cube(dtype: str = "float32") -> Any:
    return (np.arange(24).reshape(2, 3, 4) / 7).astype(dtype)


def body(wanted: Format, entries: list[Entry], encoding: Any = "float") -> bytes:
    return b"".join(body_pieces(wanted, {"object": "list", "model": "m"}, entries, encoding))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_any_float32_survives_json(numbers: list[float]) -> None:
    value = np.array(numbers, np.float32)
    assert np.array_equal(np.array(json.loads(b"".join(json_pieces(value, "float"))), np.float32), value)


def test_minus_infinity_is_null_in_json() -> None:
    assert b"".join(json_pieces(np.array([0.5, -np.inf], np.float32), "float")) == b"[0.5,null]"


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_each_format_gives_back_the_same_bits(dtype: str) -> None:
    value = (cube() * 30).astype(dtype)
    in_json, in_base64 = (json.loads(body(Format.JSON, [entry(value)], each)) for each in ("float", "base64"))
    assert in_json["model"] == "m"
    npy = np.load(io.BytesIO(body(Format.NPY, [entry(value)])), allow_pickle=False)
    for found in (
        np.array(in_json["data"][0]["attention"], dtype),
        np.frombuffer(base64.b64decode(in_base64["data"][0]["attention"]), dtype).reshape(value.shape),
        npy,
        load_safetensors(body(Format.SAFETENSORS, [entry(cube(), 0), entry(value, 1)]))["attention.1"],
    ):
        assert np.array_equal(found, value)
        assert found.dtype == value.dtype


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_a_body_in_many_pieces_reads_as_in_one(encoding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = body(Format.JSON, [entry(cube()), entry(cube() + 1, 1)], encoding)
    monkeypatch.setattr(tensor_formats, "PIECE_VALUES", 5)
    monkeypatch.setattr(tensor_formats, "PIECE_BYTES", 7)
    assert body(Format.JSON, [entry(cube()), entry(cube() + 1, 1)], encoding) == whole


def test_safetensors_carry_the_rest_of_each_entry_as_json() -> None:
    data = body(Format.SAFETENSORS, [entry(cube(), tokens=["a", "é"])])
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert metadata["model"] == "m"
    assert json.loads(metadata["attention.0"])["tokens"] == ["a", "é"]
    assert (8 + length) % 8 == 0


def test_a_transposed_array_is_written_in_its_own_order() -> None:
    value = np.swapaxes(cube(), -1, -2)
    assert np.array_equal(load_safetensors(body(Format.SAFETENSORS, [entry(value)]))["attention.0"], value)
    assert np.array_equal(np.load(io.BytesIO(body(Format.NPY, [entry(value)]))), value)


def test_npy_holds_one_array() -> None:
    check_npy(1)
    with pytest.raises(BadRequest, match="one array"):
        check_npy(2)


def test_ndjson_has_a_line_of_tokens_and_a_line_a_layer() -> None:
    lines = body(Format.NDJSON, [entry(cube(), tokens=["a"]), entry(cube() + 1, 1, tokens=["b"])]).splitlines()
    parsed = [json.loads(line) for line in lines]
    assert [line.get("tokens") for line in parsed] == [["a"], None, None, ["b"], None, None]
    assert [(line["index"], line.get("layer")) for line in parsed[1:3]] == [(0, 4), (0, 2)]
    assert parsed[1]["shape"] == [3, 4]
    assert np.array_equal(np.array(parsed[2]["attention"], np.float32), cube()[1])


def test_ndjson_names_each_pair_by_its_layer_and_head() -> None:
    pairs = [[4, 1], [2, 0]]
    _, *lines = body(Format.NDJSON, [entry(cube(), axes=["pair", "query", "key"], pairs=pairs)]).splitlines()
    assert [json.loads(line)["pair"] for line in lines] == pairs


async def test_pacing_changes_no_byte() -> None:
    pieces = [bytes([i % 256]) * (i * 1000) for i in range(60)]
    assert b"".join([part async for part in paced(iter(pieces))]) == b"".join(pieces)


def test_fragments_and_arrays_at_any_depth_of_an_answer_are_pieces_of_their_own() -> None:
    """As log-probabilities and attention in a message of POST /v1/responses."""
    part = {
        "logprobs": [orjson.Fragment(b"1"), orjson.Fragment(b'{"a":2}')],
        "attention": {"prompt": {"values": JsonArray(cube(), "float")}},
    }
    pieces = list(json_parts({"output": [{"content": [part]}]}))
    assert {b"1", b'{"a":2}'} < set(pieces)
    (read,) = json.loads(b"".join(pieces))["output"][0]["content"]
    assert read["logprobs"] == [1, {"a": 2}]
    assert np.array_equal(np.float32(read["attention"]["prompt"]["values"]), cube())
