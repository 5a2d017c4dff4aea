"""Kernels with sanitizers, and the environment in which Python loads them."""

import fcntl
import subprocess
from pathlib import Path

from lightwell.model.kernels import build, library

_LIBRARY = Path(__file__).parents[3] / "benchmarks" / ".cache" / "sanitized.so"

_OPTIONS = {
    "detect_leaks": 0,  # Python's own
    "handle_sigill": 1,  # undefined behaviour ends with this signal
    "allocator_may_return_null": 1,
    "max_allocation_size_mb": 2048,
    "hard_rss_limit_mb": 4096,
    "quarantine_size_mb": 64,
}


def sanitizer_variables() -> dict[str, str]:
    """Return variables for a process that loads a library built with `sanitize`."""
    return {
        # The second is for exceptions in torch: when the first is loaded, it looks for the function that throws them.
        "LD_PRELOAD": f"{_path_of('libasan.so')} {_path_of('libstdc++.so')}",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in _OPTIONS.items()),
    }


def sanitized_library() -> Path:
    """Return the library of the compiled levels with sanitizers. The build takes minutes, once for the sources."""
    _LIBRARY.parent.mkdir(exist_ok=True)
    with _LIBRARY.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several processes of a run need it
        if not build.is_current(_LIBRARY, levels=library.levels()):
            print("building the kernels with sanitizers, which takes minutes", flush=True)
            build.build(_LIBRARY, compiler=("g++",), levels=library.levels(), sanitize=True)
    return _LIBRARY


def _path_of(library: str) -> str:
    command = ["g++", f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
