"""Writes log-probabilities in the forms that clients know: OpenAI's legacy lists, its chat entries, vLLM's dictionaries
by token id, TGI's tokens.

They are natural logarithms of the model's own distribution, before temperature. Those of a long prompt are hundreds of
thousands of numbers: they become JSON in pieces of a few milliseconds, between which the event loop serves others.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lightwell.model.tokenization.detokenizer import Detokenizer
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.engine.messages.outputs import LOGPROBS_PIECE, TokenLogprobs

LEAST_LOGPROB = -9999.0
"""vLLM's number for a probability of zero: JSON has no minus infinity."""


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


async def _pieces(length: int) -> AsyncIterator[slice]:
    """Yield the slice of each piece of `length` positions; other tasks of the event loop run between two pieces."""
    for begin in range(0, length, LOGPROBS_PIECE):
        if begin:
            await asyncio.sleep(0)
        yield slice(begin, min(begin + LOGPROBS_PIECE, length))


def _items(values: list[Any]) -> orjson.Fragment:
    """Return neighbours in a list as JSON: orjson writes a fragment as it is, so one represents all of them. The
    list must not be empty.
    """
    return orjson.Fragment(orjson.dumps(values)[1:-1])


@dataclass
class LegacyLogprobs:
    """The `logprobs` object of completions."""

    tokenizer: Tokenizer
    num_top: int
    text: Detokenizer
    """It writes the tokens as the choice's text does."""
    offset: int = 0
    """Position of the next token, in characters."""

    async def entries(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> dict[str, list[orjson.Fragment]]:
        """Return the entries of the next tokens, one list per field. Missing ones (of a first token) are null."""
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        fields: dict[str, list[orjson.Fragment]] = {name: [] for name in names}
        async for piece in _pieces(len(token_ids)):
            for name, values in self._piece(token_ids[piece], logprobs[piece]).items():
                fields[name].append(_items(values))
        return fields

    def entry(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, list[Any]]:
        """Return the entries of the next token."""
        return self._piece([token_id], [logprobs])

    def _piece(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        strings = self.tokenizer.token_strings(token_ids)
        offsets = []
        for token_id in token_ids:  # a token within a character has the offset where that begins
            offsets.append(self.offset)
            self.offset += len(self.text.push(token_id))
        return {
            "tokens": strings,
            "token_logprobs": [None if entry is None else _finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [
                None if entry is None else self._top(entry, string)
                for entry, string in zip(logprobs, strings, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs, string: str) -> dict[str, float]:
        """Return the alternatives by their text, most likely first; the chosen token is always among them.

        A further token with the same text (parts of characters all have U+FFFD) is under "token_id:N", which is vLLM's
        name for tokens without a text of their own.
        """
        top = entry.top[: self.num_top]
        names = self.tokenizer.token_strings([token_id for token_id, _ in top])
        named: dict[str, float] = {}
        for name, (token_id, logprob) in zip(names, top, strict=True):
            is_taken = name in named or (name == string and token_id != entry.token_id)
            named[f"token_id:{token_id}" if is_taken else name] = _finite(logprob)
        named.setdefault(string, _finite(entry.logprob))
        return named


async def chat_entries(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs], num_top: int) -> list[orjson.Fragment]:
    """Return the `content` list of a chat choice's logprobs."""
    return [
        _items([chat_entry(tokenizer, entry, num_top) for entry in logprobs[piece]])
        async for piece in _pieces(len(logprobs))
    ]


def chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
    """Return an entry of `chat_entries`."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        (string,) = tokenizer.token_strings([token_id])
        return {"token": string, "logprob": _finite(logprob), "bytes": tokenizer.token_bytes(token_id)}

    return {
        **one(entry.token_id, entry.logprob),
        "top_logprobs": [one(token_id, logprob) for token_id, logprob in entry.top[:num_top]],
    }


async def ranked_entries(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None], num_top: int
) -> list[orjson.Fragment]:
    """Return vLLM's `logprobs` and `prompt_logprobs`: by token id, with rank and text, the chosen token first; null
    for a prompt's first token.
    """
    return [
        _items([None if entry is None else _ranked_entry(tokenizer, entry, num_top) for entry in logprobs[piece]])
        async for piece in _pieces(len(logprobs))
    ]


def _ranked_entry(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
    ranked = {entry.token_id: (entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(entry.top[:num_top], 1):
        ranked.setdefault(token_id, (logprob, rank))
    strings = tokenizer.token_strings(list(ranked))
    return {
        str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": string}
        for (token_id, (logprob, rank)), string in zip(ranked.items(), strings, strict=True)
    }


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    """Return a token in TGI's format."""
    (text,) = tokenizer.token_strings([token_id])
    probability = None if logprob is None else _finite(logprob)
    return {"id": token_id, "text": text, "logprob": probability, "special": token_id in tokenizer.special_ids}


async def prefill_entries(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None] | None
) -> list[orjson.Fragment]:
    """Return the tokens of a prompt in TGI's format, the first without a log-probability, or none if none are given."""
    found = []
    async for piece in _pieces(0 if logprobs is None else len(ids)):
        pairs = zip(
            ids[piece], [None if each is None else each.logprob for each in (logprobs or ())[piece]], strict=True
        )
        found.append(_items([token_entry(tokenizer, *pair) for pair in pairs]))
    return found
