"""Starts threads on which llguidance may recurse through all rules of a grammar: on others it would end the process.

Standard library only.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 256 << 20
"""llguidance takes some 3 kB for each rule of a chain, and the longest text of a grammar has room for 33,000. It is
address space: only what is used takes memory.
"""

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
