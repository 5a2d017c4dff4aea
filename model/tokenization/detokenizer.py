"""Detokenizer: converts a stream of tokens into pieces of text, and finds stop strings.

The joined pieces equal `Tokenizer.decode` of the same ids, character for character: answers in one piece use the same
class. It handles one sequence. Independent of requests, server-sent events and torch.

The text of a completion is the text that its tokens add after the prompt: a completion that begins with a new word
begins with the space (`decode(prompt + completion)` without the leading `decode(prompt)`), as in vLLM. Without prompt
ids it is `decode(completion)`. The text of a completion with a grammar is the text that the grammar has read.
"""

import codecs
from collections.abc import Sequence

from lightwell.model.tokenization.tokenizer import CLEAN_UPS, Tokenizer, fallback_byte


class Detokenizer:
    """A converter of token ids to text, one id at a time.

    Text is returned when it is final: a character with bytes in several tokens waits for the last of them. U+FFFD is
    returned only for bytes that no later token can complete. The work for each token is constant.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
        *,
        exact: bool = False,
    ) -> None:
        """Begin a text. `kept_ids` are special tokens that are not skipped with the others.

        `exact`: the text is the bytes of its tokens (`Tokenizer.token_bytes`), as a grammar reads them: without
        clean-up, and with the space of a first word.
        """
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - kept_ids if skip_special_tokens else frozenset()
        is_bytes = exact or tokenizer.byte_level
        self._text = _ByteStream(tokenizer) if is_bytes else _WindowStream(tokenizer, self._tail(prompt_ids))
        cleans_up = tokenizer.cleans_up and not exact
        self._clean_ups = [_StreamReplace(old, new) for old, new in CLEAN_UPS] if cleans_up else []

    def push(self, token_id: int) -> str:
        """Return the text that becomes final with this token. Ids outside the vocabulary add nothing."""
        if token_id in self._skipped:
            return ""
        text = self._text.push(token_id)
        for stage in self._clean_ups:
            text = stage.push(text)
        return text

    def flush(self) -> str:
        """Return the text still held back; call once, at the end."""
        text = self._text.flush()
        for stage in self._clean_ups:
            text = stage.push(text) + stage.flush()
        return text

    def _tail(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return the last token of the prompt with a text: the context that the next token needs."""
        for token_id in reversed(prompt_ids):
            token = self._tokenizer.token(token_id)
            if token is not None and token_id not in self._skipped and fallback_byte(token) is None:
                return [token_id]
        return []


class _ByteStream:
    """A stream of tokens that are bytes, decoded with the same replacement rule as a whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._whole_text = tokenizer.whole_text
        self._bytes_of = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside = False
        """True while the last character is incomplete."""

    def push(self, token_id: int) -> str:
        if not self._is_inside and (text := self._whole_text(token_id)) is not None:
            return text
        text = self._decoder.decode(bytes(self._bytes_of(token_id) or ()))
        self._is_inside = self._decoder.getstate()[0] != b""
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """A stream for any other vocabulary: decodes the new tokens together with the last one before them, and returns the
    added text.

    One token of context is enough, because decoders only distinguish the first token from the others. Skipped tokens
    never enter the window, or the token after them would count as the first.
    """

    def __init__(self, tokenizer: Tokenizer, context: list[int]) -> None:
        self._decode = tokenizer.decode_window
        self._token = tokenizer.token
        self._byte_fallback = tokenizer.byte_fallback
        self._context = context
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        token = self._token(token_id)
        if token is None:
            return ""
        self._pending.append(token_id)
        if self._byte_fallback and fallback_byte(token) is not None:
            # A run of byte tokens is decoded as a whole, to text or to U+FFFD.
            return ""
        return self._take()

    def flush(self) -> str:
        return self._take() if self._pending else ""

    def _take(self) -> str:
        before = self._decode(self._context, False)
        after = self._decode(self._context + self._pending, False)
        self._context, self._pending = self._pending[-1:], []
        return after[len(before) :]


class _StreamReplace:
    """`str.replace` for a text in pieces."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self._held = old, new, ""

    def push(self, text: str) -> str:
        *done, rest = (self._held + text).split(self._old)
        keep = next(n for n in range(len(self._old) - 1, -1, -1) if rest.endswith(self._old[:n]))
        self._held = rest[len(rest) - keep :]
        return self._new.join([*done, rest[: len(rest) - keep]])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class StopMatcher:
    """A search that ends a text at the first stop string, and holds back characters that may belong to one.

    The first stop string is the one that ends first; of several that end together, the longest. Stop strings may span
    any number of pieces. With `include` the stop string stays in the text. The work is proportional to the length of
    the text and the number of stop strings, but not to their lengths (Knuth, Morris and Pratt 1977).
    """

    def __init__(self, stop_strings: Sequence[str], include: bool = False) -> None:
        if "" in stop_strings:
            raise ValueError("stop string '' is empty; a stop string needs at least one character")
        self._stops = sorted(set(stop_strings), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._starts = frozenset(stop[0] for stop in self._stops)
        self._include = include
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that ended the text, or None."""

    def push(self, text: str, may_stop: bool = True) -> str:
        """Take the next piece of text, and return the text that cannot be part of a stop string any more. After a stop
        all text is dropped.

        Unless it `may_stop`, no stop string ends in this piece, but one may begin in it.
        """
        if self.stopped_by is not None:
            return ""
        if not self._held and self._starts.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None and may_stop:
                seen = self._held + text[: index + 1]
                self.stopped_by, self._held = stop, ""
                return seen if self._include else seen[: len(seen) - len(stop)]
        seen = self._held + text
        safe = len(seen) - max(self._matched)
        self._held = seen[safe:]
        return seen[:safe]

    def flush(self) -> str:
        """Return the text that was held back for a possible stop string; call once, at the end."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Advance every stop string's automaton by one character; return the longest completed stop string, or None."""
        found: str | None = None
        for row, stop in enumerate(self._stops):
            length = self._matched[row]
            while length and stop[length] != char:
                length = self._borders[row][length - 1]
            self._matched[row] = length + (stop[length] == char)
            if self._matched[row] == len(stop):
                found = found or stop
                self._matched[row] = self._borders[row][-1]  # the state if the text does not stop here
        return found


def _borders(pattern: str) -> list[int]:
    """Return, for each prefix of the pattern, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    for index in range(1, len(pattern)):
        length = borders[index - 1]
        while length and pattern[length] != pattern[index]:
            length = borders[length - 1]
        borders[index] = length + (pattern[length] == pattern[index])
    return borders
