"""List in NOTICE the Python distributions in the image, with the licences in their metadata.

`python -m deploy.release.notice` updates the list from the installed distributions. Other components are listed above
it, written by hand. The module does not judge licences.
"""

import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.release.versions import ROOT, CheckFailed

NOTICE = ROOT / "NOTICE"
HEADING = "distribution | versions | licence\n"
BY_HAND = ("lightwell", "lightwell-client", "lightwell-smollm2", "triton", "nvidia-*", "cuda-*")
"""Distributions that the part above the list describes; not every image has them."""

Metadata = dict[str, Any]
"""What `Distribution.metadata.json` gives: names of fields in lower case, with underscores."""


def requirements() -> list[Requirement]:
    """Return the requirements that the image installs: the dependencies and the extra for traces."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(each) for each in (*project["dependencies"], *project["optional-dependencies"]["otel"])]
    return [each for each in wanted if each.name != "lightwell-client"]


def installed_metadata(name: str) -> Metadata | None:
    """Return the metadata of an installed distribution, or None."""
    try:
        return distribution(name).metadata.json
    except PackageNotFoundError:
        return None


def licence(metadata: Metadata) -> str:
    """Return the licence as the metadata say it. Raises CheckFailed if they say none."""
    classifiers = [
        each.rpartition(" :: ")[2] for each in metadata.get("classifier", []) if each.startswith("License ::")
    ]
    text = (metadata.get("license") or "").strip().partition("\n")[0]
    found: str = metadata.get("license_expression") or ", ".join(classifiers) or text
    if not found:
        raise CheckFailed(f"{metadata['name']}'s metadata name no licence: describe it in NOTICE and in BY_HAND")
    return found


def rows() -> dict[str, tuple[str, str]]:
    """Return, by name, the versions and the licence of each distribution that the image's requirements bring."""
    found: dict[str, tuple[str, str]] = {}
    waiting = [(requirement, "") for requirement in requirements()]
    seen = set()
    while waiting:
        requirement, wanted_by = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        metadata = installed_metadata(name)
        if key in seen or _is_described_by_hand(name):
            continue
        seen.add(key)
        if metadata is None:
            raise CheckFailed(f"{name} is not installed here, and the image would bring it")
        found.setdefault(name, (f"of {wanted_by}" if wanted_by else _versions(requirement), licence(metadata)))
        for each in map(Requirement, metadata.get("requires_dist", [])):
            extras = ("", *requirement.extras)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append((each, name))
    return dict(sorted(found.items()))


def _versions(requirement: Requirement) -> str:
    return ",".join(sorted(map(str, requirement.specifier), reverse=True))


def listed() -> dict[str, tuple[str, str]]:
    """Return the list that NOTICE has, by name: versions and licence."""
    _, _, below = NOTICE.read_text(encoding="utf-8").partition(HEADING)
    lines = (line.split(" | ") for line in below.splitlines() if line)
    return {name: (versions, licence_named) for name, versions, licence_named in lines}


def _is_described_by_hand(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in BY_HAND)


def vendored() -> list[str]:
    """Return the folders and files of ours that hold work of others, or weights, as NOTICE must name them, and the
    package with the image's default model.
    """
    model = re.search(r'SOURCE = "(.+?)"', (ROOT / "deploy" / "smollm2" / "hatch_build.py").read_text(encoding="utf-8"))
    scripts = sorted((ROOT / "server" / "web" / "page" / "vendor").iterdir())
    weights = sorted({path.parent for path in (ROOT / "model").rglob("*.safetensors")})
    places = [ROOT / "server" / "web" / "docs", *scripts, *weights]
    return [*(path.relative_to(ROOT).as_posix() for path in places), *([model[1]] if model else [])]


def main() -> int:
    above, _, _ = NOTICE.read_text(encoding="utf-8").partition(HEADING)
    lines = [f"{name} | {versions} | {licence_named}\n" for name, (versions, licence_named) in rows().items()]
    NOTICE.write_text(above + HEADING + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
