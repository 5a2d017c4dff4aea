"""Loads the compiled kernels as one object: it chooses the library, and the level of CPU that it runs at.

It knows names and C types of functions; what they compute is documented where they are called, and in `cpu/`. It needs
no torch, as the API process has none.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.kernels.build import LEVELS, LIBRARY, SOURCES, architecture, compiled_levels, sources_hash

logger = logging.getLogger(__name__)

LEVEL_VARIABLE = "LIGHTWELL_KERNEL_LEVEL"
"""The environment variable that names the level to run at, instead of the highest that the CPU has."""

LIBRARY_VARIABLE = "LIGHTWELL_KERNEL_LIBRARY"
"""The environment variable that names a library to load instead of the one that was built next to this file: one with
sanitizers, say.
"""

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_TYPES = {"p": _POINTER, "l": _LONG, "f": _FLOAT}


class Kernels:
    """The kernels of one level: `call("rms_norm_f32", "pllf", ...)` runs one."""

    def __init__(self, library: ctypes.CDLL, level: str) -> None:
        self.level = level
        self._library = library
        self._functions: dict[str, Callable[..., None]] = {}

    def call(self, name: str, types: str, *arguments: Any) -> None:
        """Run the kernel `name`, whose parameters have these types: p a pointer, l a long, f a float.

        Pointers are addresses: the caller keeps the memory, and has checked that it is as large as the kernel expects.
        """
        function = self._functions.get(name)
        if function is None:
            function = getattr(self._library, f"{name}_{self.level}")
            function.argtypes = [_TYPES[each] for each in types]
            function.restype = None
            self._functions[name] = function
        function(*arguments)


def library_path() -> Path:
    """Return where the library is, or should be."""
    return Path(os.environ.get(LIBRARY_VARIABLE) or LIBRARY)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library, or None if there is none that this machine can load. Raises RuntimeError when its source is
    newer.
    """
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
                f"{path} was built from another source than the one in its folder; `make install` or `python "
                "model/kernels/build.py` builds it again"
            )
    library.lightwell_progress.restype = ctypes.c_long
    return library


@functools.cache
def levels() -> tuple[str, ...]:
    """Return the compiled levels that this machine can run, the lowest first, or none if there is no library for it."""
    compiled = () if _library() is None else compiled_levels(library_path())
    return tuple(level for level in _levels_of_cpu() if level in compiled)


def _levels_of_cpu() -> tuple[str, ...]:
    library = _library()
    return () if library is None else tuple(LEVELS[architecture()])[: library.lightwell_highest_level()]


@functools.cache
def cpu() -> tuple[str, int, int]:
    """Return this CPU's vendor, family and model, or ("", 0, 0) if they are not known."""
    library, vendor, family, model = _library(), ctypes.create_string_buffer(13), ctypes.c_long(), ctypes.c_long()
    if library is not None:
        library.lightwell_cpu(vendor, ctypes.byref(family), ctypes.byref(model))
    return vendor.value.decode("ascii", "replace"), family.value, model.value


@functools.cache
def kernels() -> Kernels:
    """Return the kernels to run: at the highest level that the CPU has, or at the one that LIGHTWELL_KERNEL_LEVEL
    names.

    Raises ValueError when the CPU has no such level or it is not compiled, RuntimeError when there are no kernels for
    the CPU at all.
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
        raise ValueError(f"{LEVEL_VARIABLE} is {wanted!r}; this CPU has {', '.join(there)}")
    return Kernels(library, wanted or there[-1])


def check_variables() -> None:
    """Raise ValueError if the environment names a library that is not there, or a level that this CPU or the library
    lacks; RuntimeError if it names a level and there are none.
    """
    if os.environ.get(LIBRARY_VARIABLE) and not library_path().is_file():
        raise ValueError(f"{LIBRARY_VARIABLE} is {str(library_path())!r}, where there is no library")
    if levels() or os.environ.get(LEVEL_VARIABLE):
        kernels()


def set_num_threads(count: int) -> None:
    """Set how many threads kernels compute in, the caller's among them."""
    library = _library()
    if library is not None:
        library.lightwell_set_num_threads(ctypes.c_long(count))


class _Noted:
    """The products that Python has noted. Two threads may count two products as one; the count never falls."""

    count = 0


def note_progress() -> None:
    """Count one more matrix product that this process begins. On a GPU it is queued then."""
    _Noted.count += 1


def progress() -> int:
    """Return how many matrix products this process has begun, plus how many parts of CPU kernels' work have ended, also
    within a call that still runs. A process whose count grows is slow, not stuck.
    """
    library = _library()
    return _Noted.count + (0 if library is None else int(library.lightwell_progress()))


def num_threads() -> int:
    """Return how many threads kernels compute in."""
    library = _library()
    return 1 if library is None else int(library.lightwell_num_threads())
