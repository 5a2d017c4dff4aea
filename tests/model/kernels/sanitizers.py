"""The environment in which Python loads kernels with sanitizers."""

import subprocess

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
        # The second for exceptions in torch: when the first is loaded, it looks for the function that throws them.
        "LD_PRELOAD": f"{_path_of('libasan.so')} {_path_of('libstdc++.so')}",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in _OPTIONS.items()),
    }


def _path_of(library: str) -> str:
    command = ["g++", f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
