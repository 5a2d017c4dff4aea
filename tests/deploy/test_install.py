"""The installation (deploy/install.py): versions, extras, torch's build for CPUs, and pip's configuration for uv."""

import ast
import functools
import http.server
import itertools
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import install
from tests.support.processes import ROOT

SCRIPT = ROOT / "deploy" / "install.py"
PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
OURS = ("lightwell", "lightwell-client", "lightwell-smollm2")

no_gpu = pytest.mark.skipif(
    sys.platform != "linux" or os.path.exists("/dev/nvidiactl"), reason="torch's CPU build is for Linux without a GPU"
)


def locked() -> dict[str, list[Requirement]]:
    """Return the lines of constraints.txt by distribution; one may have several, with markers."""
    found: dict[str, list[Requirement]] = {}
    for line in install.LOCK.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), "a line is a name, a version and a marker"
            found.setdefault(line.partition("==")[0], []).append(Requirement(line))
    return found


@pytest.mark.parametrize("project", ["pyproject.toml", "clients/python/pyproject.toml"])
def test_the_lock_has_a_version_that_satisfies_each_requirement(project: str) -> None:
    table = tomllib.loads((ROOT / project).read_text(encoding="utf-8"))["project"]
    extras = table.get("optional-dependencies", {}).values()
    wanted_ones = [Requirement(each) for each in [*table["dependencies"], *itertools.chain(*extras)]]
    lock, wrong = locked(), []
    for wanted in wanted_ones:
        name = canonicalize_name(wanted.name)
        versions = [next(iter(each.specifier)).version for each in lock.get(name, [])]
        if name not in OURS and not (versions and all(map(wanted.specifier.contains, versions))):
            wrong.append(f"{wanted}: {versions}")
    assert not wrong, "`make lock` writes constraints.txt"


@pytest.mark.nightly
def test_a_compile_gives_the_same_lock(tmp_path: Path) -> None:
    again = shutil.copy(install.LOCK, tmp_path / "constraints.txt")
    subprocess.run([sys.executable, SCRIPT, "--lock", again], check=True)
    assert again.read_text() == install.LOCK.read_text()


def test_an_older_python_is_refused_in_one_line() -> None:
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))
    code = f"import runpy, sys; sys.version_info = (3, 10, 13, 'final', 0); runpy.run_path({str(SCRIPT)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Lightwell needs Python 3\.11 or later; \S+ is [\d.]+\n", done.stderr)


def test_extras_bring_those_that_they_consist_of_and_an_unknown_one_is_named() -> None:
    assert install.all_extras([]) == set()
    assert install.all_extras(["dev", "test-gpu"]) == {"dev", "test", "nightly", "otel", "ray", "test-gpu"}
    with pytest.raises(SystemExit, match="no extra 'tset'; there are otel, "):
        install.all_extras(["tset"])


def test_what_serves_needs_nothing_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    only_nightly = {Requirement(each).name for each in [*extras["nightly"], *extras["ray"]]} - {"lightwell"}
    others = {Requirement(each).name for each in [*project["dependencies"], *extras["test"], *extras["otel"]]}
    assert not only_nightly & others


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("target", "extras", "levels"),
    [("serve", "", ""), ("test", "test", ""), ("install", "dev", ""), ("test-nightly", "dev", "--all-levels")],
)
def test_make_installs_what_its_target_needs(target: str, extras: str, levels: str) -> None:
    """Check the commands that make would run; in CI the environment names the extras."""
    names = ("EXTRAS", "MAKEFLAGS", "MAKELEVEL", "LIGHTWELL_KERNEL_LEVEL")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    command = ["make", "--dry-run", target]
    for environment, wanted in ((plain, extras), (plain | {"EXTRAS": "dev,test-gpu"}, "dev,test-gpu")):
        told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
        assert f"deploy/install.py --venv .venv --extras '{wanted}' --torch-index 'https://" in told
        assert re.search(rf"model/kernels/build.py --if-stale ?{levels}\n", told)


def test_nothing_is_installed_again_unless_a_file_changed_or_an_extra_is_new(tmp_path: Path) -> None:
    stamp = tmp_path / ".installed"
    stamp.write_text("test otel")
    command = [sys.executable, SCRIPT, "--venv", tmp_path, "--extras"]
    subprocess.run([*command, "test"], check=True)
    subprocess.run([*command, ""], check=True)
    assert [*tmp_path.iterdir()] == [stamp]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """An index on this machine that has torch's CPU build of the pinned version."""
    [pinned] = locked()["torch"]
    version = next(iter(pinned.specifier)).version
    wheel = f"torch-{version}+cpu-{PYTHON}-{PYTHON}-manylinux_2_28_{platform.machine()}.whl"
    folder = tmp_path / "index" / "torch"
    folder.mkdir(parents=True)
    (folder / wheel).touch()
    (folder / "index.html").write_text(f'<a href="{quote(wheel)}">{wheel}</a>')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address without a listener, held so that no server of another test begins to listen on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@no_gpu
def test_the_cpu_build_is_taken_from_its_index_else_as_pip_is_configured(
    page: str, silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "index")
    assert install.torch_index(page, {}) == page
    with_password = page.replace("//", "//user:pass@")
    assert install.torch_index(with_password, {}) == with_password
    assert install.torch_index(silent, {"find-links": [f"{folder}/torch"]}) is None
    assert install.torch_index(silent, {"index-url": [silent], "extra-index-url": [page]}) is None
    assert install.torch_index(silent, {"extra-index-url": [f"file://{folder}"]}) is None
    assert "warning" not in capsys.readouterr().err


@no_gpu
def test_where_no_cpu_build_is_found_the_size_of_the_other_is_told(
    silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.torch_index(silent, {"index-url": [silent]}) is None
    told = capsys.readouterr().err
    assert told.startswith("warning: no CPU build of torch ")
    assert silent in told
    assert "5.7 GB" in told


def test_uv_gets_pips_configuration_and_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a.example/simple\ncert = /a.pem\nextra-index-url =\n    https://b.example\n    file:///c\n"
        "[install]\nindex-url = https://d.example/simple\n"
    )
    for variable in [name for name in os.environ if name.startswith(("PIP_", "UV_", "SSL_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example")
    monkeypatch.setenv("UV_INDEX", "https://e.example")
    settings = install.pip_settings()
    assert settings["index-url"] == ["https://d.example/simple"]
    environment = install.uv_environment(settings)
    assert environment["UV_DEFAULT_INDEX"] == "https://uv.example"
    assert environment["UV_INDEX"] == "https://b.example file:///c https://e.example"
    assert environment["UV_FIND_LINKS"] == "/wheels,/more"
    assert environment["SSL_CERT_FILE"] == "/a.pem"
    assert environment["UV_INDEX_STRATEGY"] == "unsafe-best-match"
