"""The reader returns the same values as Python's parser for any size of pieces, and rejects the same texts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.server.http import json_reader
from lightwell.server.http.errors import PayloadTooLarge
from lightwell.server.http.json_reader import MAX_CONTAINERS, MAX_TEXTS, Integers, JsonReader

PIECES = st.integers(80, 400)  # the longest number drawn fits in one piece
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.builds(lambda text, n: text * n, st.text('a"\\[{]},: é\n中😀\ud83d'), st.integers(1, 200))
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\[{]}:,'), inner) | st.lists(st.integers())
)
SPACES = ((",", ":"), (", ", ": "), (" ,\n\t", "\r : "))


@given(values, PIECES, st.booleans(), st.sampled_from(SPACES), st.sampled_from(["", "\ufeff"]))
def test_a_body_is_read_as_json_reads_it(value: Any, piece: int, is_ascii: bool, spaces: Any, mark: str) -> None:
    text = mark + json.dumps(value, ensure_ascii=is_ascii, separators=spaces)
    body = text.encode(errors="replace")  # half a surrogate pair is no UTF-8; escaped it is JSON
    assert same(JsonReader(body, piece).read(), json.loads(body))


def same(found: Any, expected: Any) -> bool:
    if type(expected) is dict:
        return list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    if type(expected) is list:
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and bool(found == expected)


@given(
    value=values,
    piece=PIECES,
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(["", *'"\\[]{},: 1e-.ntu\x01é'])), min_size=1, max_size=3
    ),
)
def test_what_json_refuses_is_refused(value: Any, piece: int, changes: list[tuple[float, str]]) -> None:
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    for place, new in changes:
        at = int(place * len(text))
        text = text[:at] + new + text[at + 1 :]
    try:
        expected = json.loads(text)
    except json.JSONDecodeError:
        with pytest.raises(json.JSONDecodeError) as caught:
            JsonReader(text.encode(), piece).read()
        assert 0 <= caught.value.pos <= len(text.encode())
    else:
        assert same(JsonReader(text.encode(), piece).read(), expected)


@pytest.mark.parametrize(
    ("body", "place"), [(b'{"a": 1, "b" 2}', 13), (b'[1, 2, "a\x01"]', 9), (b"[1, 2, nul]", 7), (b'["a", "b', 6)]
)
def test_the_place_of_an_error_is_told(body: bytes, place: int) -> None:
    for piece in (3, 1 << 16):
        with pytest.raises(json.JSONDecodeError) as caught:
            JsonReader(body, piece).read()
        assert caught.value.pos == place


@given(numbers=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20), piece=PIECES)
def test_a_long_list_of_whole_numbers_tells_its_ends(numbers: list[int], piece: int) -> None:
    long = numbers * 300
    read = JsonReader(json.dumps(long).encode(), piece).read()
    assert isinstance(read, Integers)
    assert (read, read.least, read.greatest) == (long, min(long), max(long))
    for other in (True, 1.0, None, "1", [1]):
        assert type(JsonReader(json.dumps([*long, other]).encode(), piece).read()) is list
        assert type(JsonReader(json.dumps([other, *long]).encode(), piece).read()) is list


def test_what_no_request_needs_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MAX_WIDE_TEXT", 100)
    JsonReader(b"[" + b",".join([b"{}"] * (MAX_CONTAINERS - 1)) + b"]").read()
    for body in (
        b"[" + b",".join([b"{}"] * MAX_CONTAINERS) + b"]",
        b"[" + b",".join([b'""'] * (MAX_TEXTS + 1)) + b"]",
        b'"' + b"a" * 100 + "é".encode() + b'"',
    ):
        with pytest.raises(PayloadTooLarge, match="at most"):
            JsonReader(body).read()
    assert JsonReader(b'"' + b"a" * 1000 + b'"').read() == "a" * 1000
    assert JsonReader(b'"' + b"[{" * MAX_CONTAINERS + b'"').read() == "[{" * MAX_CONTAINERS


def test_a_body_nested_deeper_than_python_reads_is_refused() -> None:
    with pytest.raises(RecursionError):
        JsonReader(b"[" * 10_000 + b"]" * 10_000).read()
