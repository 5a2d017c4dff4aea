"""Starts threads on which llguidance may recurse through all rules of a grammar, and bounds these: without both, a
chain of some thousands would end the process.

Standard library only.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from model.sampling.grammar.errors import GrammarError

MAX_NESTED = 5_000
"""How many rules and brackets a grammar may have: each may be within the one before."""
STACK_BYTES = 32 << 20
"""Bytes of address space, twice what MAX_NESTED takes: llguidance needs some 3 kB for each."""

_lock = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Give a deep stack to the threads that are started within."""
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)


def check_nesting(count: int) -> None:
    """Raise GrammarError for more rules and brackets than may be in a grammar."""
    if count > MAX_NESTED:
        raise GrammarError("", f"the grammar has {count} rules and brackets; at most {MAX_NESTED} are supported")
