"""POST /v1/embeddings."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from server.engine.request import EmbedTask
from server.errors import EngineError
from tests.server.fake_client import HIDDEN_SIZE, FakeEngine
from tests.server.serving import Site, site

PATH = "/v1/embeddings"


def vector(token: int, layer: int = -1, width: int = HIDDEN_SIZE) -> list[float]:
    return [token + layer + 0.25 * j for j in range(width)]


async def task_of(at: Site, **body: Any) -> EmbedTask:
    answer = await at.post(PATH, {"input": "ab", **body})
    assert answer.status_code == 200, answer.text
    task = at.engine.submitted[-1].task
    assert isinstance(task, EmbedTask)
    return task


async def test_an_answer_has_openais_shape(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        answer = (await at.post(PATH, {"input": ["ab", "c"]})).json()
    assert (answer["object"], answer["model"]) == ("list", "org/tiny")
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert [entry["embedding"] for entry in answer["data"]] == [vector(98), vector(99)]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 3


async def test_base64_is_little_endian_float32(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        (entry,) = (await at.post(PATH, {"input": "a", "encoding_format": "base64"})).json()["data"]
    assert np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() == vector(97)


async def test_a_decoder_takes_its_last_token_normalised_unless_told_otherwise(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        assert await task_of(at) == EmbedTask(layer=None, pooling="last", normalize=True, dimensions=None)
        told = await task_of(at, layer=-1, pooling="mean", normalize=False, dimensions=3)
    assert told == EmbedTask(layer=3, pooling="mean", normalize=False, dimensions=3)


async def test_pooling_none_gives_a_vector_a_token(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        (entry,) = (await at.post(PATH, {"input": "ab", "pooling": "none", "layer": 0})).json()["data"]
    assert entry["tokens"] == ["a", "b"]
    assert entry["shape"] == [2, HIDDEN_SIZE]
    assert entry["embedding"] == [vector(97, 0), vector(98, 0)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"dimensions": 9}, "dimensions"), ({"layer": 4}, "layer"), ({"layer": -5}, "layer"), ({"input": [[]]}, "input")],
)
async def test_what_the_model_lacks_is_400(fields: dict[str, Any], param: str, tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        assert (await at.error(PATH, {"input": "ab", **fields}, 400))["param"] == param


async def test_binary_forms_hold_the_same_numbers(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        tensors = await at.post(PATH, {"input": ["a", "b"]}, headers={"accept": "application/vnd.safetensors"})
        npy = await at.post(PATH, {"input": "a", "pooling": "none"}, headers={"accept": "application/x-npy"})
        lines = await at.post(PATH, {"input": "ab", "pooling": "none"}, headers={"accept": "application/x-ndjson"})
    assert load_safetensors(tensors.content)["embedding.1"].tolist() == vector(98)
    assert np.load(io.BytesIO(npy.content)).tolist() == [vector(97)]
    first, *rest = [json.loads(line) for line in lines.text.splitlines()]
    assert first["tokens"] == ["a", "b"]
    assert [(line["token"], line["embedding"]) for line in rest] == [(0, vector(97)), (1, vector(98))]


async def test_too_many_vectors_are_413(tmp_path: Path) -> None:
    async with site(tmp_path, max_response_bytes=100) as at:
        await at.error(PATH, {"input": "abcdef", "pooling": "none"}, 413)
        assert at.engine.submitted == []


async def test_a_worker_that_fails_fails_the_request(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(failure=EngineError("boom"))) as at:
        error = await at.error(PATH, {"input": ["a", "b"]}, 500)
    assert error["message"] == "boom"
