"""Passages of books, and queries that belong to one of several passages: the data of a small cross-encoder."""

import random
import re

PASSAGE_WORDS, QUERY_WORDS = 40, (3, 6)
CANDIDATES = 6
"""Number of passages of one query, the right one included."""


def passages_of(corpus: str) -> list[list[str]]:
    """Return the passages of each book: `PASSAGE_WORDS` words each."""
    books = []
    for book in corpus.split("<|endoftext|>"):
        words = book.split()
        books.append(
            [" ".join(words[i : i + PASSAGE_WORDS]) for i in range(0, len(words) - PASSAGE_WORDS, PASSAGE_WORDS)]
        )
    return [book for book in books if len(book) >= 2 * CANDIDATES]


def query_of(passage: str, drawn: random.Random) -> str:
    """Return some words of one sentence of a passage, the longer ones rather than the shorter."""
    sentences = [each for each in re.split(r"(?<=[.!?;])\s+", passage) if len(each.split()) >= QUERY_WORDS[0]] or [
        passage
    ]
    words = drawn.choice(sentences).split()
    wanted = min(len(words), drawn.randint(*QUERY_WORDS))
    places = sorted(range(len(words)), key=lambda i: -len(words[i]) * drawn.random())[:wanted]
    return " ".join(words[i].strip(".,;:!?\"'") for i in sorted(places)).lower()


def draw(books: list[list[str]], drawn: random.Random) -> tuple[str, list[str]]:
    """Return a query, and its passages, the right one first; half of the others are of the same book."""
    book = drawn.choice(books)
    right = drawn.choice(book)
    others = [drawn.choice(book) for _ in range(CANDIDATES // 2)]
    others += [drawn.choice(drawn.choice(books)) for _ in range(CANDIDATES - 1 - len(others))]
    return query_of(right, drawn), [right, *(each if each != right else drawn.choice(book) for each in others)]
