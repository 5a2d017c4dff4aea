"""Embeddings from every form that servers send."""

import base64
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell_client import Embeddings, InvalidResponse
from lightwell_client._embeddings import parse_embeddings

FLOAT32 = st.floats(width=32, allow_nan=False)


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def parse(body: Any) -> Embeddings:
    return parse_embeddings(body, len(body["data"]))


def answer(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"model": "toy", "data": [{"index": i} | entry for i, entry in enumerate(entries)], "usage": None}


@given(st.lists(st.lists(FLOAT32, min_size=3, max_size=3), min_size=1))
def test_base64_and_lists_give_the_same_numbers(vectors: list[list[float]]) -> None:
    as_lists = parse(answer(*({"embedding": vector} for vector in vectors)))
    as_base64 = parse(answer(*({"embedding": packed(*vector)} for vector in vectors)))
    assert as_lists == as_base64
    np.testing.assert_array_equal(as_base64.matrix, np.array(vectors, dtype="float32"))
    assert [list(vector) for vector in as_base64.vectors] == vectors


@pytest.mark.parametrize(
    "embedding", [packed(1, 2, 3, 4), [packed(1, 2), packed(3, 4)], [[1, 2], [3, 4]]], ids=["one", "packed", "lists"]
)
def test_one_vector_a_token_is_a_matrix_of_tokens(embedding: Any) -> None:
    [one] = parse(answer({"embedding": embedding, "tokens": ["a", "b"]})).data
    np.testing.assert_array_equal(one.matrix, [[1, 2], [3, 4]])
    assert one.tokens == ("a", "b")
    with pytest.raises(ValueError, match="one a token"):
        _ = one.vector


def test_inputs_of_different_length_have_no_common_matrix() -> None:
    entries = [{"embedding": packed(1, 2), "tokens": ["a"]}, {"embedding": packed(1, 2, 3, 4), "tokens": ["a", "b"]}]
    with pytest.raises(ValueError, match="one vector a token"):
        _ = parse(answer(*entries)).matrix


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"data": [{}]},
        {"data": [{"index": "x", "embedding": [1]}]},
        answer({"embedding": []}),
        answer({"embedding": None}),
        answer({"embedding": "???"}),
        answer({"embedding": "AAA="}),
        answer({"embedding": ["a", 1]}),
        answer({"embedding": [1, None]}),
        answer({"embedding": [[1, 2], [3]], "tokens": ["a", "b"]}),
        answer({"embedding": [[1, 2]], "tokens": ["a", "b"]}),
        answer({"embedding": packed(1, 2, 3), "tokens": ["a", "b"]}),
        answer({"embedding": packed(1, 2), "tokens": []}),
        answer(),
        answer({"embedding": packed(1)}, {"embedding": packed(1)}),
        answer({"embedding": packed(1), "index": 1}),
    ],
)
def test_what_cannot_be_read_is_refused(body: Any) -> None:
    with pytest.raises(InvalidResponse, match="not an embeddings answer"):
        parse_embeddings(body, 1)


def test_embeddings_tell_and_show_their_shapes() -> None:
    pooled = parse(answer({"embedding": packed(1, 2)}, {"embedding": packed(3, -4)}))
    assert str(pooled).splitlines()[1:] == [
        "  Embedding(index=0, [input 1, d 2] float32)",
        "  Embedding(index=1, [input 1, d 2] float32)",
    ]
    assert (pooled._repr_html_() or "").count("<img") == 1
    each = parse(
        answer({"embedding": [[1, 2], [3, 4]], "tokens": ["<s>", "a"]}, {"embedding": [[1, 2]], "tokens": ["b"]})
    )
    assert repr(each[0]) == "Embedding(index=0, [token 2, d 2] float32)"
    assert (each._repr_html_() or "").count("<img") == 2
    assert "&lt;s&gt;" in (each._repr_html_() or "")
