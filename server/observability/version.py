"""Versions of Lightwell, from pyproject.toml, of Python and of torch."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def lightwell_version() -> str:
    """Return the version of the installed distribution, or "0+unknown" when it runs from a bare checkout."""
    return _version("lightwell")


@cache
def versions() -> dict[str, str]:
    """Return the versions of the server, Python and torch, by label of `lightwell_build_info`."""
    return {"version": lightwell_version(), "python": platform.python_version(), "torch": _version("torch")}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "0+unknown"
