"""Checks what would be uploaded: that it builds, is described properly, and works from an empty environment."""

import json
import re
import tarfile
import zipfile
from pathlib import Path

from deploy.release.asking import check_attention, serving
from deploy.release.versions import CheckFailed
from deploy.release.workplace import NEWEST, Skipped, Workplace, run

CLIENT_PROGRAM = """
import sys
from lightwell_client import Client

client = Client(sys.argv[1])
text = client.generate("Once upon a time there was a", max_tokens=8, temperature=0).text
shape = client.attention("The old king", layers=2, heads=[0, 5]).shape
assert tuple(shape) == (1, 2, 3, 3), shape
print(text)
"""
"""Run where the client is installed, with the server's address."""


def check_builds(work: Workplace) -> str:
    """Build all files of a release. Raises CheckFailed where one is of another version or carries no NOTICE, and
    Skipped where the wheels for other machines could not be made.
    """
    for file in work.files:
        if not re.match(rf"lightwell(_client)?-{re.escape(work.version)}[.-]", file.name):
            raise CheckFailed(f"{file.name} is not of version {work.version}")
        names = _names(file)
        missing = [each for each in ("LICENSE", "NOTICE") if not any(Path(name).name == each for name in names)]
        if missing:
            raise CheckFailed(f"{file.name} carries no {' and no '.join(missing)}")
    sizes = ", ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in work.files)
    if not work.can_cross_compile:
        raise Skipped(f"without PyPI's ziglang there are no wheels to upload; built were {sizes}")
    return sizes


def _names(file: Path) -> list[str]:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return wheel.namelist()
    with tarfile.open(file) as sdist:
        return sdist.getnames()


def check_twine(work: Workplace) -> str:
    """Let twine judge the metadata of all files. Raises CheckFailed for what PyPI would refuse, and for warnings."""
    printed = run([work.tools, "-m", "twine", "check", "--strict", *work.files], folder=work.empty)
    return f"{printed.count('PASSED')} files"


def check_server(work: Workplace) -> str:
    """Install the server's wheel beside the newest of NEWEST, serve and ask; then the same with its sdist."""
    beside = _newest(work, work.server)
    texts = []
    for file in (work.server_wheel, work.server_sdist):
        work.replace(work.server, file)
        with serving(work.server, work.empty, "fables") as server:
            texts.append(check_attention(server))
            server.stop()
    if texts[0] != texts[1]:
        raise CheckFailed(f"the wheel answers {texts[0]!r}, the sdist {texts[1]!r}")
    return f"{texts[0]!r}, {beside}"


def check_client(work: Workplace) -> str:
    """Install the client's wheel beside the newest of NEWEST, and ask a server; then the same with its sdist."""
    beside = _newest(work, work.client)
    with serving(work.server, work.empty, "fables") as server:
        for file in (work.client_wheel, work.client_sdist):
            work.replace(work.client, file)
            said = run([work.client, "-I", "-c", CLIENT_PROGRAM, server.url], folder=work.empty)
        server.stop()
    return f"{said.strip()!r}, {beside}"


def _newest(work: Workplace, python: Path) -> str:
    """Return which releases of NEWEST an environment has. Raises CheckFailed if pip would give newer ones, which
    something of ours then forbids, or if what is installed does not agree.
    """
    work.pip(python, "check")
    newer = work.folder / "newer.json"
    options = ("--dry-run", "--quiet", "--no-deps", "--upgrade", "--report", newer)
    work.pip(python, "install", *options, *NEWEST)
    held = [each["metadata"] for each in json.loads(newer.read_text())["install"]]
    if held:
        raise CheckFailed(f"pip would give, without us, {_names_and_versions(held)}")
    installed = json.loads(work.pip(python, "list", "--format", "json"))
    return "beside " + _names_and_versions([each for each in installed if each["name"] in NEWEST])


def _names_and_versions(distributions: list[dict[str, str]]) -> str:
    return ", ".join(f"{each['name']} {each['version']}" for each in distributions)
