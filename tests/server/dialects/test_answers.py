"""The ways in which an answer is sent, by its size."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from starlette.responses import Response
from starlette.types import Message

from server.dialects.responses import tensor_response
from server.http.tensor_formats import WRITE_BYTES, Format, NumpyArray, Piece, npy_pieces
from tests.server.dialects.looks import at_site, engine_of
from tests.server.fake_client import INFO
from tests.server.serving import Site


async def bodies_of(answer: Response) -> list[bytes]:
    """Return the pieces of the answer that are sent, including the empty piece that ends a stream."""
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
async def test_a_small_answer_says_how_long_it_is(path: str, body: dict[str, object], plain: Site) -> None:
    answer = await plain.post(path, body)
    assert int(answer.headers["content-length"]) == len(answer.content) > 0


@pytest.mark.parametrize(
    "route", ["attention", "trace", "embeddings", "next", "lens", "heads", "rollout", "trajectory"]
)
async def test_every_answer_that_looks_inside_tells_the_precision_that_computed_it(route: str, tmp_path: Path) -> None:
    """Check the field `compute_dtype`, since the dtype of the numbers is only the format in which they are sent: a
    network that computes in bfloat16 may send float32.
    """
    body = {"input": "abcab", **({"points": ["hook_embed"]} if route == "trace" else {})}
    engine = engine_of()
    precision = "bfloat16/int8" if route == "trace" else "bfloat16"
    info = replace(INFO, dtype="bfloat16", activations="int8" if route == "trace" else "dtype")
    with patch.object(type(engine), "info", lambda _: info):
        async with at_site(tmp_path, engine) as at:
            answer = await at.post(f"/v1/{route}", body)
            assert answer.json()["compute_dtype"] == precision
            binary = await at.http.post(f"/v1/{route}", json=body, headers={"accept": Format.SAFETENSORS.value})
            length = int.from_bytes(binary.content[:8], "little")
            assert json.loads(binary.content[8 : 8 + length])["__metadata__"]["compute_dtype"] == precision
            for path in ("/v1/models/org/tiny", "/v1/capabilities", "/version"):
                assert (await at.http.get(path)).json()["compute_dtype"] == precision


async def test_an_answer_with_layers_tells_how_many_there_are(plain: Site) -> None:
    capabilities = (await plain.http.get("/v1/capabilities")).json()["stacks"]
    for route, fields in (("attention", {}), ("rollout", {}), ("trace", {"points": ["attn.hook_q"]})):
        told = (await plain.post(f"/v1/{route}", {"input": "ab", "layers": 0, **fields})).json()["stacks"]
        assert list(told) == list(capabilities)
        for stack, sizes in told.items():
            assert sizes.items() <= capabilities[stack].items()
            assert sizes.keys() == {"num_layers", "num_heads", "num_kv_heads"}


async def test_a_small_answer_is_one_piece_and_a_large_one_a_stream() -> None:
    answer = await tensor_response(Format.JSON, lines(10_000), ())
    assert await bodies_of(answer) == [b"".join(lines(10_000))]
    answer = await tensor_response(Format.JSON, lines(3 * WRITE_BYTES), ())
    bodies = await bodies_of(answer)
    assert "content-length" not in answer.headers
    assert len(bodies) > 3
    assert max(map(len, bodies)) < 2 * WRITE_BYTES
    assert b"".join(bodies) == b"".join(lines(3 * WRITE_BYTES))


@pytest.mark.parametrize("size", [10, 3 * WRITE_BYTES])
async def test_a_binary_answer_of_any_size_says_how_long_it_is(size: int) -> None:
    array: NumpyArray = np.zeros(size, np.uint8)
    answer = await tensor_response(Format.NPY, npy_pieces(array), [array])
    assert int(answer.headers["content-length"]) == sum(map(len, await bodies_of(answer))) > size
