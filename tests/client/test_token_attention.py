"""Attention rows that come with generated tokens."""

import base64
from typing import Any

import numpy as np
import pytest

from lightwell_client import Client, InvalidResponse
from tests.client.conftest import Asker
from tests.client.wire_server import Reply, WireServer, chat_chunk, completion_chunk, event_stream, events

Array = np.ndarray[Any, Any]


def rows_of(array: Array, queries: list[int], **more: Any) -> dict[str, Any]:
    return {
        "object": "attention",
        "layers": [5],
        "heads": [0],
        "query_positions": queries,
        "axes": ["layer", "head", "query", "key"],
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "kind": "pattern",
        "attention": base64.b64encode(array.tobytes()).decode(),
    } | more


def with_rows(chunk: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    [choice] = chunk["choices"]
    return chunk | {"choices": [choice | {"attention": rows}]}


FIRST = np.array([[[[0.25, 0.75]]]], dtype="float32")
SECOND = np.array([[[[0.5, 0.125, 0.375]]]], dtype="float32")


def test_each_chunk_carries_the_row_that_chose_its_token(ask: Asker, server: WireServer) -> None:
    prompt = rows_of(np.array([[[[1, 0], [0.25, 0.75]]]], dtype="float32"), [0, 1])
    chunks = [
        with_rows(completion_chunk("a"), rows_of(FIRST, [1], prompt=prompt)),
        with_rows(completion_chunk("b"), rows_of(SECOND, [2])),
        with_rows(completion_chunk("", "stop"), {}),
    ]
    server.will(event_stream(events(*chunks)))
    asked = {"layers": -1, "heads": 0, "prompt": True}
    first, second, last = (chunk.choices[0].attention for chunk in ask.collect("stream", "xy", attention=asked))
    np.testing.assert_array_equal(first.array, FIRST)
    np.testing.assert_array_equal(first.prompt.array[0, 0], [[1, 0], [0.25, 0.75]])
    np.testing.assert_array_equal(second.array, SECOND)
    assert (first.query_positions, second.query_positions, first.axes[-2:]) == ((1,), (2,), ("query", "key"))
    assert (second.prompt, last) == (None, None)
    assert server.seen[0].body["attention"] == asked | {"encoding_format": "base64"}


def test_a_chats_chunks_and_answers_carry_them_too(client: Client, server: WireServer) -> None:
    server.will(event_stream(events(with_rows(chat_chunk({"content": "a"}), rows_of(FIRST, [1])))))
    [chunk] = client.chat_stream("x", attention={"encoding_format": "float"})
    assert chunk.choices[0].attention is not None
    np.testing.assert_array_equal(chunk.choices[0].attention.array, FIRST)
    assert server.seen[0].body["attention"] == {"encoding_format": "float"}
    choice = {"index": 0, "message": {"content": "a"}, "attention": rows_of(FIRST, [1], attention=FIRST.tolist())}
    server.will(Reply(body={"choices": [choice]}))
    attention = client.chat("x", attention={}).choices[0].attention
    assert attention is not None
    np.testing.assert_array_equal(attention.array, FIRST)


def test_top_k_comes_with_the_positions(client: Client, server: WireServer) -> None:
    rows = rows_of(FIRST, [1], axes=["layer", "head", "query", "k"], values=FIRST.tolist(), indices=[[[[1, -1]]]])
    del rows["attention"]
    server.will(Reply(body=with_rows(completion_chunk("a"), rows)))
    attention = client.generate("x", attention={"top_k": 2}).choices[0].attention
    assert attention is not None
    np.testing.assert_array_equal(attention.array, FIRST)
    assert attention.indices is not None
    np.testing.assert_array_equal(attention.indices, [[[[1, -1]]]])


def test_rows_that_do_not_fit_their_shape_are_refused(client: Client, server: WireServer) -> None:
    server.will(Reply(body=with_rows(completion_chunk("a"), rows_of(FIRST, [1], shape=[1, 1, 1, 3]))))
    attention = client.generate("x", attention={}).choices[0].attention
    assert attention is not None
    with pytest.raises(InvalidResponse, match=r"shape \(1, 1, 1, 3\) came with 2 numbers"):
        _ = attention.array
