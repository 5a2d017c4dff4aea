"""Follows grammars byte by byte: checks whether one admits a text, and writes texts at random."""

import random
from typing import Any

import llguidance

from lightwell.model.sampling.grammar.checking import END, byte_tokenizer

CLOSING = frozenset(b'"}]')


def matcher(grammar: str) -> Any:
    """Start to match a grammar; ValueError for one that llguidance refuses."""
    started = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
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
        allowed = [token for token, bias in enumerate(started.compute_logit_bias()[: END + 1]) if bias]
        if not allowed:
            raise ValueError(f"no token may follow {bytes(text)!r}")
        quote = [
            token for token in allowed if token in CLOSING
        ]  # a text ends sooner than by chance among all characters
        token = END if END in allowed and chance.random() < ending else chance.choice(allowed)
        if quote and chance.random() < ending:
            token = chance.choice(quote)
        if token == END:
            break
        text.append(token)
        started.consume_token(token)
        if len(text) > longest:
            return None
    if not started.is_accepting():
        raise ValueError(f"the text cannot be ended after {bytes(text)!r}")
    return text.decode()
