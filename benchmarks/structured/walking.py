"""A tokenizer of single bytes, and what can be asked of a grammar with it: does it admit a text, and what may be written."""

import random
from functools import cache
from typing import Any

import llguidance

END = 256
"""The token that ends a text."""


class Bytes:
    """Each byte is a token of its own."""

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
def tokenizer() -> Any:
    """Make llguidance's view of it, once."""
    return llguidance.LLTokenizer(Bytes(), n_vocab=END + 1, eos_token=END)


def matcher(grammar: str) -> Any:
    """Start to match a grammar; ValueError for one that llguidance refuses."""
    started = llguidance.LLMatcher(tokenizer(), grammar, log_level=0)
    if started.is_error():
        raise ValueError(started.get_error())
    return started


def admits(grammar: str, text: str) -> bool:
    """Say whether the text may be an answer, from its first byte to its end."""
    started = matcher(grammar)
    tokens = list(text.encode())
    return bool(started.try_consume_tokens(tokens) == len(tokens) and started.is_accepting())


def walk(grammar: str, chance: random.Random, longest: int = 2000, ending: float = 0.3) -> str | None:
    """Write a text by chance among the tokens that may follow; None where it did not end within `longest` bytes."""
    started = matcher(grammar)
    text = bytearray()
    while not started.is_stopped():
        allowed = [token for token, bias in enumerate(started.compute_logit_bias()) if bias]
        if not allowed:
            raise ValueError(f"no token may follow {bytes(text)!r}")
        quote = [token for token in allowed if token in b'"}]']  # a text ends sooner than by chance among all characters
        token = END if END in allowed and chance.random() < ending else chance.choice(allowed)
        if quote and chance.random() < ending:
            token = chance.choice(quote)
        if token == END:
            break
        text.append(token)
        started.consume_token(token)
        if len(text) > longest:
            return None
    return text.decode()
