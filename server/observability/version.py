"""Reads the version, which is defined in pyproject.toml alone."""

from importlib.metadata import PackageNotFoundError, version


def lightwell_version() -> str:
    """Return the version of the installed distribution, or "0+unknown" when it runs from a bare checkout."""
    try:
        return version("lightwell")
    except PackageNotFoundError:
        return "0+unknown"
