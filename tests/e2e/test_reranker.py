"""A trained cross-encoder orders passages of a book that it was not trained on, with the scores of the library.

`benchmarks/judgements/train_reranker.py` made it.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from sentence_transformers import CrossEncoder

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.network.cross_encoder import score_defaults
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.engine.messages.request import ClassifyTask
from tests.server.engine.driving import build, load, request, run
from tests.support.passages import CANDIDATES, draw, passages_of

FOLDER = Path(__file__).parent / "reranker"
BOOK = Path(__file__).parent / "book_of_dragons.txt"
NUM_QUERIES = 60
CHANCE = float(np.mean(1 / np.log2(np.arange(2, CANDIDATES + 2))))
"""The expected nDCG of one right passage at any place alike."""


def ours(pairs: list[tuple[str, str]], **options: Any) -> np.ndarray:
    defaults = score_defaults(FOLDER, read_config(FOLDER))
    assert defaults is not None
    encoded = Tokenizer.from_folder(FOLDER).encode_pairs(pairs, defaults.max_length or 512)
    asked = [
        replace(request(uid, each.ids, ClassifyTask()), second_segment=each.second_segment)
        for uid, each in enumerate(encoded)
    ]
    found = run(build(load(FOLDER, **options), max_num_batched_tokens=4096), asked)
    return defaults.scores(np.stack([found[uid].array("logits") for uid in range(len(pairs))]))[:, 0]


def drawn_pairs() -> list[tuple[str, str]]:
    """Return each query with `CANDIDATES` passages, the right one first."""
    drawn, books = random.Random(7), passages_of(BOOK.read_text(encoding="utf-8"))
    queries = [draw(books, drawn) for _ in range(NUM_QUERIES)]
    return [(query, passage) for query, passages in queries for passage in passages]


def gain(scores: np.ndarray) -> float:
    """Return the nDCG of these scores of `drawn_pairs`."""
    ranks = (-scores.reshape(NUM_QUERIES, CANDIDATES)).argsort(1).argsort(1)[:, 0]  # of the right passages
    return float(np.mean(1 / np.log2(ranks + 2)))


def test_passages_of_another_book_are_put_in_order_as_the_library_does() -> None:
    scores = ours(drawn_pairs())
    expected = CrossEncoder(str(FOLDER), device="cpu", local_files_only=True).predict(drawn_pairs())
    assert abs(scores - expected).max() <= 1e-5
    print(f"nDCG {gain(scores):.3f}, by chance {CHANCE:.3f}")
    assert gain(scores) > 0.95 > CHANCE


def test_in_int8_passages_keep_their_order() -> None:
    scores = ours(drawn_pairs())
    rounded = ours(drawn_pairs(), quantize="int8", kernels=KernelConfig(activations="int8"))
    assert not np.array_equal(rounded, scores)
    print(f"nDCG {gain(rounded):.3f} in int8, {gain(scores):.3f} in float32; {np.corrcoef(scores, rounded)[0, 1]:.4f}")
    assert gain(rounded) > gain(scores) - 0.01
    assert np.corrcoef(scores, rounded)[0, 1] > 0.995
