"""A trained cross-encoder orders passages of a book that it was not trained on, with the scores of the library.

`benchmarks/judgements/train_reranker.py` made it.
"""

import random
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from sentence_transformers import CrossEncoder

from lightwell.model.checkpoint.registry import read_config
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


def ours(pairs: list[tuple[str, str]]) -> np.ndarray:
    defaults = score_defaults(FOLDER, read_config(FOLDER))
    assert defaults is not None
    encoded = Tokenizer.from_folder(FOLDER).encode_pairs(pairs, defaults.max_length or 512)
    asked = [
        replace(request(uid, each.ids, ClassifyTask()), second_segment=each.second_segment)
        for uid, each in enumerate(encoded)
    ]
    found = run(build(load(FOLDER), max_num_batched_tokens=4096), asked)
    return defaults.scores(np.stack([found[uid].array("logits") for uid in range(len(pairs))]))[:, 0]


def test_passages_of_another_book_are_put_in_order_as_the_library_does() -> None:
    drawn, books = random.Random(7), passages_of(BOOK.read_text(encoding="utf-8"))
    queries = [draw(books, drawn) for _ in range(NUM_QUERIES)]
    pairs = [(query, passage) for query, passages in queries for passage in passages]
    scores = ours(pairs)
    expected = CrossEncoder(str(FOLDER), device="cpu", local_files_only=True).predict(pairs)
    assert abs(scores - expected).max() <= 1e-5
    ranks = (-scores.reshape(NUM_QUERIES, CANDIDATES)).argsort(1).argsort(1)[:, 0]  # of the right passages
    gain = float(np.mean(1 / np.log2(ranks + 2)))
    print(f"nDCG {gain:.3f}, by chance {CHANCE:.3f}")
    assert gain > 0.95 > CHANCE
