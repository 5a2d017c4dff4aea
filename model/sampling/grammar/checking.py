"""Checks a grammar without a model's tokenizer: what llguidance refuses, and what is larger than its limits."""

from functools import cache
from typing import Any, cast

import llguidance

from model.sampling.grammar.errors import GrammarError

MAX_BYTES = 4_000_000
"""A written grammar's longest text, in bytes."""
STEPS = 8
"""How many bytes of an answer are tried."""


END = 256
"""The byte tokenizer's token for the end of a text."""


class _Bytes:
    """A tokenizer in which each byte is a token."""

    is_tokenizer_wrapper = True
    eos_token_id = END
    bos_token_id = None

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(END)] + [b"<end>"]
        self.special_token_ids = [END]

    def __call__(self, text: str | bytes) -> list[int]:
        """Turn a text into its bytes."""
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> llguidance.LLTokenizer:
    """Make llguidance's view of a tokenizer in which each byte is a token, once."""
    return llguidance.LLTokenizer(cast(Any, _Bytes()), n_vocab=END + 1, eos_token=END)


def check(grammar: str) -> None:
    """Raise GrammarError for a grammar that llguidance refuses, or that is larger than its limits.

    It also takes the first steps: some limits are met only there. Takes up to a second or two, without the
    interpreter's lock, for the largest grammars that are admitted.
    """
    if len(grammar) > MAX_BYTES:
        raise GrammarError("", f"the grammar is written in more than {MAX_BYTES} bytes")
    wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:
        raise _refused(messages[0])
    if any("<special_token>" in message for message in messages):
        return  # a byte tokenizer has no special tokens to begin with
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    for _ in range(STEPS):
        allowed = b"" if matcher.is_error() or matcher.is_stopped() else matcher.compute_logit_bias()[: END + 1]
        token = next((token for token, bias in enumerate(allowed) if bias), END)
        if token == END:
            break
        matcher.consume_token(token)
    if matcher.is_error():
        raise _refused(matcher.get_error())
    if is_empty(grammar):
        raise GrammarError("", "no text is admitted")


def is_empty(grammar: str) -> bool:
    """Say whether no text at all begins an answer of a grammar that llguidance accepts."""
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        raise _refused(matcher.get_error())
    return not matcher.is_accepting() and (matcher.is_stopped() or not any(matcher.compute_logit_bias()[:END]))


def _refused(message: str) -> GrammarError:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return GrammarError("", (lines or ["it is refused"])[0][:300])
