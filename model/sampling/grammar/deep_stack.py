"""Deep stacks for threads on which llguidance recurses through the rules of a grammar, and a limit of these: without
both, a chain of some thousands of rules would end the process. Standard library only.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lightwell.model.sampling.grammar.errors import GrammarError

MAX_NESTED = 5_000
"""Largest number of rules and brackets of a grammar: each may be within the one before."""
STACK_BYTES = 32 << 20
"""Bytes of address space: twice the need of MAX_NESTED rules, each of which takes llguidance some 3 kB."""

_lock = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Give a deep stack to the threads that are started in this context."""
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)


def check_nesting(count: int) -> None:
    """Raise GrammarError if a grammar has more than MAX_NESTED rules and brackets."""
    if count > MAX_NESTED:
        raise GrammarError("", f"the grammar has {count} rules and brackets; at most {MAX_NESTED} are supported")
