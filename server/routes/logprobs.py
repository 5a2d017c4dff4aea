"""Log-probabilities in the three forms clients know: OpenAI's legacy lists, its chat entries, vLLM's prompt_logprobs.

Natural logarithms of the model's own distribution, before temperature.
"""

from collections.abc import Sequence
from typing import Any

from model.tokenizer import Tokenizer
from server.engine.outputs import TokenLogprobs

LEAST_LOGPROB = -9999.0
"""What vLLM writes for a probability of zero: JSON has no minus infinity."""


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class LegacyLogprobs:
    """The `logprobs` object of completions. Offsets count characters from the beginning of the choice's text."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def entries(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The next tokens, one list a field. A missing entry (a prompt's first token) is null."""
        strings = self._tokenizer.token_strings(token_ids)
        offsets = []
        for string in strings:
            offsets.append(self._offset)
            self._offset += len(string)
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
        """Alternatives by their text, most likely first; the chosen token is always among them."""
        top = entry.top[: self._num_top]
        by_text: dict[str, float] = {}
        for name, (_, logprob) in zip(self._tokenizer.token_strings([i for i, _ in top]), top, strict=True):
            by_text.setdefault(name, _finite(logprob))  # of two tokens with one text, the likelier
        by_text.setdefault(string, _finite(entry.logprob))
        return by_text


def chat_entries(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs], num_top: int) -> list[dict[str, Any]]:
    """The `content` list of a chat choice's logprobs."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        string = tokenizer.token_strings([token_id])[0]
        return {"token": string, "logprob": _finite(logprob), "bytes": tokenizer.token_bytes(token_id)}

    return [
        {
            **one(entry.token_id, entry.logprob),
            "top_logprobs": [one(token_id, logprob) for token_id, logprob in entry.top[:num_top]],
        }
        for entry in logprobs
    ]


def prompt_entries(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None], num_top: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token id, with rank and text; null for the first token."""
    return [None if entry is None else _prompt_entry(tokenizer, entry, num_top) for entry in logprobs]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, Any]:
    ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:num_top], 1)}
    ranked[entry.token_id] = (entry.logprob, entry.rank)
    strings = tokenizer.token_strings(list(ranked))
    return {
        str(token_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": string}
        for (token_id, (logprob, rank)), string in zip(ranked.items(), strings, strict=True)
    }
