"""How an answer is sent, by its size."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.responses import Response
from starlette.types import Message

from server.routes.answers import tensor_response
from server.tensors import WRITE_BYTES, Format, NumpyArray, Piece, npy_pieces
from tests.server.serving import site


async def bodies_of(answer: Response) -> list[bytes]:
    """The pieces of the answer that are sent, and the empty one that ends a stream."""
    sent: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(bytes(message["body"]))

    await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    return sent


def lines(num_bytes: int) -> Iterator[Piece]:
    return iter([bytes(999) + b"\n"] * (num_bytes // 1000))


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/embeddings", {"input": "ab"}), ("/v1/attention", {"input": "ab", "layers": 0})]
)
async def test_a_small_answer_says_how_long_it_is(path: str, body: dict[str, object], tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        answer = await at.post(path, body)
    assert int(answer.headers["content-length"]) == len(answer.content) > 0


async def test_a_small_answer_is_one_piece() -> None:
    answer = tensor_response(Format.JSON, lines(10_000), ())
    assert await bodies_of(answer) == [b"".join(lines(10_000))]


async def test_a_large_answer_is_a_stream() -> None:
    answer = tensor_response(Format.JSON, lines(3 * WRITE_BYTES), ())
    bodies = await bodies_of(answer)
    assert "content-length" not in answer.headers
    assert len(bodies) > 3
    assert max(map(len, bodies)) < 2 * WRITE_BYTES
    assert b"".join(bodies) == b"".join(lines(3 * WRITE_BYTES))


@pytest.mark.parametrize("size", [10, 3 * WRITE_BYTES])
async def test_a_binary_answer_of_any_size_says_how_long_it_is(size: int) -> None:
    array: NumpyArray = np.zeros(size, np.uint8)
    answer = tensor_response(Format.NPY, npy_pieces(array), [array])
    assert int(answer.headers["content-length"]) == sum(map(len, await bodies_of(answer))) > size
