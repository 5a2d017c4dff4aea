"""The version, which stands in pyproject.toml alone."""

from importlib.metadata import PackageNotFoundError, version


def lightwell_version() -> str:
    """The version of the installed distribution, "0+unknown" when it runs from a bare checkout."""
    try:
        return version("lightwell")
    except PackageNotFoundError:
        return "0+unknown"
