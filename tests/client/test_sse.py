"""The event-stream decoder: the same events however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell_client._sse import ServerSentEvent, SseDecoder


def decode(content: bytes, cuts: list[int] | None = None) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    edges = [0, *sorted(cut % (len(content) + 1) for cut in cuts or []), len(content)]
    return [event for a, b in pairwise(edges) for event in decoder.feed(content[a:b])]


def message(data: str) -> ServerSentEvent:
    return ServerSentEvent("message", data)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"data: a\n\n", [message("a")]),
        (b"data:a\r\n\r\ndata: b\r\r", [message("a"), message("b")]),
        (b"data:  two spaces\n\n", [message(" two spaces")]),
        (b"data: a\ndata: b\ndata\n\n", [message("a\nb\n")]),
        (b": comment\n\ndata: a\n\n", [message("a")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [ServerSentEvent("error", "a"), message("b")]),
        (b"event: lost\n\ndata: b\n\n", [message("b")]),
        (b"id: 3\nretry: 9\nwhat: x\ndata: a\n\n", [message("a")]),
        ("\ufeffdata: 🐟\n\n".encode(), [message("🐟")]),
        (b"data: unfinished\n", []),
        (b"", []),
    ],
)
def test_events_are_read_as_the_format_says(content: bytes, expected: list[ServerSentEvent]) -> None:
    assert decode(content) == expected
    assert decode(content, list(range(len(content)))) == expected


LINE = st.sampled_from(["data: a", "data:", "data: é🐟", "event: error", ": ping", "", "", "id: 1", "junk"])


@given(st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\r"]))), st.lists(st.integers(0, 1000)))
def test_where_the_bytes_are_cut_never_matters(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    content = "".join(line + end for line, end in lines).encode()
    assert decode(content, cuts) == decode(content)


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))
def test_any_line_of_text_survives(text: str) -> None:
    assert decode(f"data: {text}\n\n".encode()) == [message(text)]
