"""Writes the version of the newest release into the files that name it: `python -m deploy.release.versions`.

The newest release is the first of CHANGELOG.md. The version of an installed server comes from git's tags (hatch-vcs).
"""

import datetime
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

PLACES = {
    "pyproject.toml": r'(?:(?<=fallback-version = ")|(?<="lightwell-client>=))[^",]+',
    "clients/python/lightwell_client/_version.py": r'(?m)(?<=^__version__ = ")[^"]+',
    "deploy/kubernetes/chart/lightwell/Chart.yaml": r'(?m)(?:(?<=^version: )|(?<=^appVersion: "))[\w.]+',
    "deploy/kubernetes/plain/**/*.yaml": r'(?:(?<=app.kubernetes.io/version: ")|(?<=image: "lightwell:))[^"]+',
    "docs/kubernetes.md": r"(?<=REGISTRY/lightwell:)[\w.]+",
    "docs/requests.md": r'(?<={"version":")[^"]+',
}
"""The files that contain the version, each with the pattern of the version."""


class CheckFailed(Exception):
    """A file does not meet the requirements of a release; the message names the file."""


def version() -> str:
    """Return the version of the newest release. Raises CheckFailed as `changelog`."""
    _, versions = changelog()
    return versions[0].version


def _places() -> Iterator[tuple[Path, str]]:
    """Yield each file that names a version, and its pattern. Raises CheckFailed if there is none of a kind."""
    for name, pattern in PLACES.items():
        found = [path for path in sorted(ROOT.glob(name)) if re.search(pattern, path.read_text("utf-8"))]
        if not found:
            raise CheckFailed(f"{name} names no version")
        yield from ((path, pattern) for path in found)


def check_versions() -> str:
    """Return the version and the number of files with it. Raises CheckFailed if a file has another version or none."""
    named = {path.relative_to(ROOT): set(re.findall(pattern, path.read_text("utf-8"))) for path, pattern in _places()}
    wrong = [f"{path} has {', '.join(sorted(found))}" for path, found in named.items() if found != {version()}]
    if wrong:
        raise CheckFailed(f"CHANGELOG.md has {version()}: {'; '.join(wrong)} (python -m deploy.release.versions)")
    return f"{version()} in CHANGELOG.md and {len(named)} other files"


@dataclass(frozen=True)
class Changes:
    version: str
    date: datetime.date
    text: str


def changelog() -> tuple[str, list[Changes]]:
    """Return the text under [Unreleased], and the versions, the newest first.

    Raises CheckFailed for another heading, or for a version without a date.
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


def main() -> int:
    for path, pattern in _places():
        path.write_text(re.sub(pattern, version(), path.read_text("utf-8")), encoding="utf-8")
    print(check_versions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
