"""Pages of the libraries that this process has mapped: let go when what needed them is over.

A start runs much code that serving never runs again: four fifths of what torch's libraries have in memory after it.
Linux; standard library only.
"""

import contextlib
import ctypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_SMAPS = Path("/proc/self/smaps")
_DONT_NEED = 4
"""MADV_DONTNEED. Of a mapped file: what is read there next comes from the file, as it did the first time."""
_madvise = getattr(ctypes.CDLL(None), "madvise", None)
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
"""The first line of a mapping in /proc/PID/smaps: its addresses, its permissions and the file's path."""
_LIBRARY = re.compile(r"\.so(\.|$)")


class _Part(NamedTuple):
    """Of a library: addresses from `start` up to `end`."""

    start: int
    end: int


def let_go_of_libraries() -> None:
    """Give up this process's pages of its libraries, but for those that it has changed. What runs again comes back from
    the kernel's cache of files, some sixteen pages at a time, in a microsecond or a few.

    Only libraries, as they stay mapped where they are for as long as the process lives. Nothing happens where the
    kernel does not tell what is mapped.
    """
    if _madvise is None:
        return
    with contextlib.suppress(OSError):  # no /proc
        for part in _unchanged_parts(_SMAPS.read_text().splitlines()):
            _madvise(part.start, part.end - part.start, _DONT_NEED)


def _unchanged_parts(smaps: Iterable[str]) -> Iterator[_Part]:
    """Those that nobody may write to and nobody has written to: linking does, where a part holds addresses."""
    part = None
    for line in smaps:
        if found := _MAPPING.match(line):
            is_fixed = found[3] in ("r--p", "r-xp") and _LIBRARY.search(Path(found[4]).name)
            part = _Part(int(found[1], 16), int(found[2], 16)) if is_fixed else None
        elif part is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield part
