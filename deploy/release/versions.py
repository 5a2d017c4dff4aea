"""Holds the version in one place, pyproject.toml: finds the other files that name it, and writes it into them.

`python -m deploy.release.versions` writes it. It knows files and patterns, and nothing of what is released.
"""

import datetime
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

PLACES = {
    "clients/python/lightwell_client/_version.py": r'(?m)(?<=^__version__ = ")[^"]+',
    "deploy/kubernetes/chart/lightwell/Chart.yaml": r'(?m)(?:(?<=^version: )|(?<=^appVersion: "))[\w.]+',
    "deploy/kubernetes/plain/**/*.yaml": r'(?:(?<=app.kubernetes.io/version: ")|(?<=image: "lightwell:))[^"]+',
    "docs/kubernetes.md": r"(?<=REGISTRY/lightwell:)[\w.]+",
    "docs/requests.md": r'(?<={"version":")[^"]+',
}
"""The files that name the version, each with the pattern of what is the version in it."""


class CheckFailed(Exception):
    """A release may not be made as things are; the message says why."""


def version() -> str:
    """Return the version that pyproject.toml has."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: str = tomllib.loads(text)["project"]["version"]
    return found


def _places() -> Iterator[tuple[Path, str]]:
    """Yield each file that names a version, and its pattern. Raises CheckFailed if there is none of a kind."""
    for name, pattern in PLACES.items():
        found = [path for path in sorted(ROOT.glob(name)) if re.search(pattern, path.read_text("utf-8"))]
        if not found:
            raise CheckFailed(f"{name} names no version")
        yield from ((path, pattern) for path in found)


def check_versions() -> str:
    """Return in how many places the version stands. Raises CheckFailed where one has another, or none."""
    named = {path.relative_to(ROOT): set(re.findall(pattern, path.read_text("utf-8"))) for path, pattern in _places()}
    wrong = [f"{path} has {', '.join(sorted(found))}" for path, found in named.items() if found != {version()}]
    if wrong:
        raise CheckFailed(f"pyproject.toml has {version()}: {'; '.join(wrong)} (python -m deploy.release.versions)")
    return f"{version()} in pyproject.toml and {len(named)} other files"


@dataclass(frozen=True)
class Changes:
    """A section of CHANGELOG.md."""

    version: str
    date: datetime.date
    text: str


def changelog() -> tuple[str, list[Changes]]:
    """Return what stands under [Unreleased], and the versions, the newest first.

    Raises CheckFailed for a heading that is neither, or without a date.
    """
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    first, _, unreleased = sections[0].partition("\n")
    if first != "[Unreleased]":
        raise CheckFailed(f"CHANGELOG.md begins with {first!r}, not with [Unreleased]")
    versions = []
    for section in sections[1:]:
        heading, _, below = section.partition("\n")
        parts = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})", heading)
        if not parts:
            raise CheckFailed(f"CHANGELOG.md has {heading!r}, not a version and a date: [1.2.3] - 2026-01-31")
        versions.append(Changes(parts[1], datetime.date.fromisoformat(parts[2]), below.strip()))
    return unreleased.strip(), versions


def check_changelog(today: datetime.date) -> str:
    """Return the newest version and its date. Raises CheckFailed if it is not the version to be released, or undated,
    or if anything has changed since.
    """
    unreleased, versions = changelog()
    newest = versions[0]
    if newest.version != version():
        raise CheckFailed(f"the newest version in CHANGELOG.md is {newest.version}, in pyproject.toml {version()}")
    if newest.date > today:
        raise CheckFailed(f"CHANGELOG.md dates {newest.version} {newest.date}, which is after today, {today}")
    if unreleased:
        raise CheckFailed("CHANGELOG.md has changes under [Unreleased], which belong to a version")
    return f"{newest.version} of {newest.date}, {len(newest.text.splitlines())} lines"


def main() -> int:
    """Write pyproject.toml's version into every other place; return the exit status."""
    for path, pattern in _places():
        path.write_text(re.sub(pattern, version(), path.read_text("utf-8")), encoding="utf-8")
    print(check_versions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
