"""Parts of a release that become outdated between two: the versions in files, the changelog's form, NOTICE's list."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.release import notice, versions
from deploy.release.versions import ROOT, CheckFailed


def test_every_file_that_names_the_version_has_that_of_the_newest_release() -> None:
    assert versions.check_versions().startswith(versions.version())


def test_a_version_that_stands_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.PLACES, "constraints.txt", r"(?<=^litserve==)[\w.]+|(?<=\nlitserve==)[\w.]+")
    with pytest.raises(CheckFailed, match=r"constraints.txt has 0\.2\.19"):
        versions.check_versions()


def test_the_version_is_the_tags_and_a_source_distribution_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    subprocess.run(["git", *identity, "tag", "-a", "v98.7.6", "-m", "a test"], cwd=folder, check=True)
    hatchling = [sys.executable, "-m", "hatchling"]
    subprocess.run([*hatchling, "build", "--target", "sdist", "--directory", tmp_path], cwd=folder, check=True)
    subprocess.run(["tar", "-xf", tmp_path / "lightwell-98.7.6.tar.gz"], cwd=tmp_path, check=True)
    told = subprocess.run([*hatchling, "version"], cwd=tmp_path / "lightwell-98.7.6", capture_output=True, check=True)
    assert told.stdout == b"98.7.6\n"


def test_the_changelog_has_dated_versions_the_newest_first() -> None:
    _, released = versions.changelog()
    numbers = [tuple(map(int, each.version.split("."))) for each in released]
    assert numbers == sorted(numbers, reverse=True)
    assert [each.date for each in released] == sorted((each.date for each in released), reverse=True)
    assert all(each.text.startswith("### ") for each in released)


def test_notice_lists_every_distribution_that_the_dependencies_bring() -> None:
    """Compare only names: the licence text of a distribution may change with its next release."""
    missing = notice.rows().keys() - notice.listed().keys()
    assert not missing, "python -m deploy.release.notice writes them"
    assert all(licence for _, licence in notice.listed().values())


def test_notice_has_the_versions_that_pyproject_admits() -> None:
    for requirement in notice.requirements():
        found, _ = notice.listed()[canonicalize_name(requirement.name)]
        assert Requirement(requirement.name + found).specifier == requirement.specifier


def test_notice_describes_what_is_vendored_and_the_weights() -> None:
    text = notice.NOTICE.read_text(encoding="utf-8")
    assert {"server/web/docs", "model/fables"} < set(notice.vendored())
    assert not [name for name in notice.vendored() if name not in text]


def test_the_client_has_the_servers_licence() -> None:
    client = ROOT / "clients" / "python"
    assert (client / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for folder in (ROOT, client):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["license-files"] == ["LICENSE", "NOTICE"]
        assert all((folder / name).is_file() for name in project["license-files"])
