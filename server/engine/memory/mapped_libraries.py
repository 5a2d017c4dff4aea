"""Release of the library pages that only the start of a process needs: four fifths of the pages of torch's libraries.
Linux only.
"""

import contextlib
import ctypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
_DONT_NEED = 4
"""MADV_DONTNEED: the next use of these pages of a mapped file reads the file again."""
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
"""Matches the first line of a mapping in /proc/PID/smaps: its addresses, its permissions and the file's path."""
_LIBRARY = re.compile(r"\.so(\.|$)")


def let_go_of_libraries() -> None:
    """Release this process's unchanged pages of its libraries. Code that runs again is read from the kernel's page
    cache, about sixteen pages at a time, in one to a few microseconds.

    Only libraries are released, since they stay mapped at the same place for the life of the process. Nothing happens
    without the kernel's list of mappings.
    """
    with contextlib.suppress(OSError):  # no /proc
        for start, end in _unchanged_parts(_SMAPS.read_text().splitlines()):
            _madvise(start, end - start, _DONT_NEED)


def _unchanged_parts(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of parts not writable and never written to; linking writes to parts with addresses."""
    part = None
    for line in smaps:
        if found := _MAPPING.match(line):
            is_fixed = found[3] in ("r--p", "r-xp") and _LIBRARY.search(Path(found[4]).name)
            part = (int(found[1], 16), int(found[2], 16)) if is_fixed else None
        elif part is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield part
