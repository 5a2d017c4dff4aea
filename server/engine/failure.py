"""Describes why one request cannot continue although the engine can, and derives that from an exception. Standard
library only.
"""

from dataclasses import dataclass

from server.engine.outputs import FinishReason

_NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc", "could not create a primitive")
"""What torch's allocators, the C++ library and oneDNN say where Python would raise MemoryError. The last is
oneDNN's: it can plan a product of any size, so what it lacks is memory for the code.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one request ended."""

    reason: FinishReason
    message: str


def failure_of(error: BaseException) -> Failure:
    """Return the failure of the request whose work raised `error`: "memory" if an allocation failed, else "error"."""
    line = " ".join(str(error).split("\n", 1)[0].split())
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return Failure("memory", line or "an allocation failed")
    return Failure("error", f"{type(error).__name__}: {line}")
