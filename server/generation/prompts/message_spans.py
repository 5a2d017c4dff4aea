"""Spans of a chat's messages: sentences with their places in the messages and in the prompt's tokens.

The chat template writes the messages a second time with marks around each text, which shows the places of the texts in
the prompt.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count

from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.prompts.sentences import sentences
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.chat_messages import ChatMessage

MAX_SPANS = 64
"""Most spans of a chat, and most explained sentences of its answer."""
_FIRST_MARK = 0xF0000
_MARK = re.compile("([\U000f0000-\U000ffffd])")
"""A mark: a private character of Unicode's plane 15. Each text has two, one before it and the next one after it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A sentence of a message, or several."""

    message: int
    """Number of the message."""
    start: int
    end: int
    """Range [start, end) of characters in the message's text."""
    first_token: int
    end_token: int
    """Range of tokens in the prompt."""


def with_marks(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with marks around their texts, without the white space around these."""
    marks = map(chr, count(_FIRST_MARK))

    def marked(text: str) -> str:
        return text.replace(own := text.strip(), f"{next(marks)}{own}{next(marks)}", 1)

    found = []
    for message in messages:
        content = message.content
        if isinstance(content, str):
            content = marked(content)
        elif content is not None:
            content = [{**part, "text": marked(part["text"])} for part in content]
        found.append(message.model_copy(update={"content": content}))
    return found


def spans_of(messages: Sequence[ChatMessage], marked: str, prompt: Prompt) -> list[Span]:
    """Return at most `MAX_SPANS` spans in the order of the prompt; longer texts have longer spans.

    Raises BadRequest if the places of the texts are unknown: for a prompt that was cut, and for a template that changes
    the texts.

    Args:
        messages: of the chat, at most `MAX_SPANS`.
        marked: the text of the prompt with the marks.
        prompt: with its text and offsets.
    """
    pieces = _MARK.split(marked)
    text = "".join(pieces[::2])
    places = dict(zip(pieces[1::2], accumulate(map(len, pieces[::2])), strict=False))
    marks = map(chr, count(_FIRST_MARK))
    spans = []
    for message, start, own in _texts(messages):
        begin, end = places.get(next(marks), -1), places.get(next(marks), -1)
        if text == prompt.text and 0 <= begin < end and text[begin:end] == own:
            spans += _spans(message, start, own, begin, prompt)
    if not spans:
        raise BadRequest(
            "explain.by: the positions of the messages in the prompt are unknown, because the prompt was truncated or "
            "the chat "
            'template changes the texts; "word", "head" and "layer" are accepted.',
            param="explain.by",
            code="not_explainable",
        )
    return at_most(spans, MAX_SPANS)


def at_most(spans: Sequence[Span], limit: int) -> list[Span]:
    """Return the spans, joined with their neighbours in the same message until there are at most `limit`, but at least
    one for each message: the largest length in tokens below which spans are joined is as small as possible.
    """
    total = sum(span.end_token - span.first_token for span in spans)
    size = bisect_left(range(total), True, key=lambda size: len(_joined(spans, size)) <= limit)
    return _joined(spans, size)


def ranges_of_tokens(
    ranges: Sequence[tuple[int, int]], starts: Sequence[int], ends: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the range of tokens of each range of characters. Tokens between two ranges belong to the first one.

    Args:
        ranges: [start, end) of characters, in order.
        starts: the first character of each token, ascending.
        ends: the end of each token, ascending.
    """
    firsts = [bisect_right(ends, start) for start, _ in ranges]
    last = bisect_left(starts, ranges[-1][1]) if ranges else 0
    return list(zip(firsts, [*firsts[1:], max(last, firsts[-1])] if firsts else [], strict=True))


def _spans(message: int, start: int, own: str, begin: int, prompt: Prompt) -> list[Span]:
    """Return the spans of a text that begins at character `start` of the message and `begin` of the prompt."""
    assert prompt.offsets is not None
    length = len(prompt.ids) - prompt.num_ending
    starts, ends = prompt.offsets[: 2 * length : 2], prompt.offsets[1 : 2 * length : 2]
    places = [place for place in sentences(own) if any(map(str.isalnum, own[slice(*place)]))]
    tokens = ranges_of_tokens([(begin + first, begin + end) for first, end in places], starts, ends)
    return [
        Span(message, start + place[0], start + place[1], *range_)
        for place, range_ in zip(places, tokens, strict=True)
        if range_[0] < range_[1]
    ]


def _joined(spans: Sequence[Span], size: int) -> list[Span]:
    """Return the spans; a span of fewer than `size` tokens is joined with the following ones."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last is not None and last.message == span.message and last.end_token - last.first_token < size:
            found[-1] = replace(last, end=span.end, end_token=span.end_token)
        else:
            found.append(span)
    return found


def _texts(messages: Sequence[ChatMessage]) -> Iterator[tuple[int, int, str]]:
    """Yield the number of the message, the first character in its text, and the text without white space around it, of
    each text, in the order of their marks. The parts of a message are joined by a line break.
    """
    for number, message in enumerate(messages):
        start, content = 0, () if message.content is None else message.content
        for part in [content] if isinstance(content, str) else [each["text"] for each in content]:
            yield number, start + len(part) - len(part.lstrip()), part.strip()
            start += len(part) + 1
