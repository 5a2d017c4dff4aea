"""The loader of the compiled kernels: it chooses the library and the CPU level.

It calls functions by their names and C types. Their callers and `cpu/` document the functions. The API process loads
kernels too, so this module never imports torch.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightwell.model.kernels.build import LEVELS, LIBRARY, SOURCES, architecture, compiled_levels, sources_hash

logger = logging.getLogger(__name__)

LEVEL_VARIABLE = "LIGHTWELL_KERNEL_LEVEL"
"""The environment variable with the level to use, instead of the highest of the CPU."""

LIBRARY_VARIABLE = "LIGHTWELL_KERNEL_LIBRARY"
"""The environment variable with the path of another library than the one next to this file, such as one with
sanitizers.
"""

_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float}


def fields(kind: str, *names: str) -> list[tuple[str, Any]]:
    """Return fields of one type for a `ctypes.Structure`: p a pointer, l a long, f a float."""
    return [(name, _TYPES[kind]) for name in names]


class Kernels:
    """The kernels of one level: `call("rms_norm_f32", "pllf", ...)` runs one."""

    def __init__(self, library: ctypes.CDLL, level: str) -> None:
        self.level = level
        self._library = library
        self._functions: dict[str, Callable[..., None]] = {}

    def call(self, name: str, types: str, *arguments: Any) -> None:
        """Run the kernel `name` with parameters of these types: p a pointer, l a long, f a float.

        Pointers are addresses. The caller keeps their memory, and has checked its size.
        """
        function = self._functions.get(name)
        if function is None:
            function = getattr(self._library, f"{name}_{self.level}")
            function.argtypes = [_TYPES[each] for each in types]
            function.restype = None
            self._functions[name] = function
        function(*arguments)


def library_path() -> Path:
    """Return the path of the library, which may not exist."""
    return Path(os.environ.get(LIBRARY_VARIABLE) or LIBRARY)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library, or None if this machine cannot load one. Raises RuntimeError if its source has changed."""
    path = library_path()
    if not path.is_file():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        logger.warning("the kernels cannot be loaded: %s", error)
        return None
    if path == LIBRARY and SOURCES.is_dir():
        built_from = getattr(library, "lightwell_sources", None)
        if built_from is not None:
            built_from.restype = ctypes.c_uint64
        if built_from is None or built_from() != sources_hash():
            raise RuntimeError(
                f"{path} was not built from the source code in its folder; `make install` or `python "
                "model/kernels/build.py` builds it again"
            )
    library.lightwell_progress.restype = ctypes.c_long
    return library


@functools.cache
def levels() -> tuple[str, ...]:
    """Return the compiled levels that this machine supports, from the lowest; none without a library for it."""
    compiled = () if _library() is None else compiled_levels(library_path())
    return tuple(level for level in _levels_of_cpu() if level in compiled)


def _levels_of_cpu() -> tuple[str, ...]:
    library = _library()
    return () if library is None else tuple(LEVELS[architecture()])[: library.lightwell_highest_level()]


@functools.cache
def cpu() -> tuple[str, int, int]:
    """Return this CPU's vendor, family and model, or ("", 0, 0) if they are unknown."""
    library, vendor, family, model = _library(), ctypes.create_string_buffer(13), ctypes.c_long(), ctypes.c_long()
    if library is not None:
        library.lightwell_cpu(vendor, ctypes.byref(family), ctypes.byref(model))
    return vendor.value.decode("ascii", "replace"), family.value, model.value


@functools.cache
def kernels() -> Kernels:
    """Return the kernels of the highest level of the CPU, or of the level in LIGHTWELL_KERNEL_LEVEL.

    Raises ValueError for a level that the CPU lacks or that is not compiled, RuntimeError without kernels for the CPU.
    """
    library, there, wanted = _library(), levels(), os.environ.get(LEVEL_VARIABLE) or None
    if library is None or not there:
        raise RuntimeError(f"there are no compiled kernels for this machine ({library_path()})")
    if wanted is not None and wanted not in there:
        if wanted in _levels_of_cpu():
            raise ValueError(
                f"{LEVEL_VARIABLE} is {wanted!r}, which is not compiled ({', '.join(there)} is); "
                "`python model/kernels/build.py --all-levels` compiles every level"
            )
        raise ValueError(f"{LEVEL_VARIABLE} is {wanted!r}; this CPU supports {', '.join(there)}")
    return Kernels(library, wanted or there[-1])


def check_variables() -> None:
    """Raise ValueError if the environment names a library that does not exist, or a level that this CPU or the library
    lacks; RuntimeError if it names a level and there are no kernels.
    """
    if os.environ.get(LIBRARY_VARIABLE) and not library_path().is_file():
        raise ValueError(f"{LIBRARY_VARIABLE} is {str(library_path())!r}; there is no library at this path")
    if levels() or os.environ.get(LEVEL_VARIABLE):
        kernels()


def set_num_threads(count: int) -> None:
    """Set the number of threads of the kernels that the calling thread runs, which includes itself. Threads that have
    set none use the last number that any thread set.
    """
    library = _library()
    if library is not None:
        library.lightwell_set_num_threads(ctypes.c_long(count))


class _Noted:
    """The products counted by Python. Two threads may count two products as one; the count never falls."""

    count = 0


def note_progress() -> None:
    """Count one more matrix product that this process begins, or queues on a GPU."""
    _Noted.count += 1


def progress() -> int:
    """Return the number of matrix products that this process has begun, plus the number of finished parts of CPU
    kernels' work, also within a call that still runs. A process is slow, not stuck, if its count grows.
    """
    library = _library()
    return _Noted.count + (0 if library is None else int(library.lightwell_progress()))


def num_threads() -> int:
    """Return the number of threads of the kernels that the calling thread runs."""
    library = _library()
    return 1 if library is None else int(library.lightwell_num_threads())
