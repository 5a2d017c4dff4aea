"""Installs Lightwell from this folder into a virtual environment, at the versions of constraints.txt.

    python deploy/install.py [--extras test,nightly] [--torch-index URL]   install; nothing is done if nothing changed
    python deploy/install.py --lock constraints.txt [--upgrade]            compile the versions again
    python deploy/install.py --print-torch-index URL                       pip's option for torch's index, if needed

It uses uv from PATH, or else from PyPI; if uv is missing or fails, it uses pip. It needs only Python itself.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"Lightwell needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}")

import argparse
import ast
import base64
import http.client
import os
import platform
import re
import shutil
import ssl
import subprocess
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MODEL = "./deploy/smollm2"
GPU_SIGNS = ("/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")
"""Files of an NVIDIA GPU's driver, on Linux and in WSL."""
MADE_OF = ("pyproject.toml", LOCK.name, "clients/python/pyproject.toml", "hatch_build.py", "deploy/install.py")
"""A change of one of these files installs everything again."""
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Settings of pip that uv does not read, and the variables in which uv gets them."""
Settings = dict[str, list[str]]
"""Values of pip's settings by name."""


def pip_settings() -> Settings:
    """Return pip's configuration; the environment precedes files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    merged = {}
    for section in ("global.", "install.", ":env:."):
        for key, value in found.items():
            if key.startswith(section):
                name = key.removeprefix(section)
                merged["timeout" if name == "default-timeout" else name] = str(ast.literal_eval(value)).split()
    return merged


def uv_environment(settings: Settings, names: Iterable[str] = UV_VARIABLES) -> dict[str, str]:
    """Return the environment of uv. Variables that are set stay."""
    separators = {"find-links": ","}
    ours = {UV_VARIABLES[name]: separators.get(name, " ").join(settings[name]) for name in names if name in settings}
    if set_already := os.environ.get("UV_INDEX"):
        ours["UV_INDEX"] = f"{ours['UV_INDEX']} {set_already}" if "UV_INDEX" in ours else set_already
    kept = {name: value for name, value in os.environ.items() if name != "UV_INDEX"}
    return {"UV_INDEX_STRATEGY": "unsafe-best-match"} | ours | kept  # pip's strategy: the best of all indexes


def torch_index(index: str, settings: Settings) -> str | None:
    """Return the index to add for torch's CPU build, or None if pip's configuration has that build or there is a GPU.

    Prints a warning where the CPU build is nowhere.
    """
    if sys.platform != "linux" or any(map(os.path.exists, GPU_SIGNS)):
        return None
    pinned = re.search(r"^torch==([\w.]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    version = pinned[1] if pinned else "0"
    if has_cpu_build(f"{index}/torch/", version, settings):
        return index
    indexes = [*settings.get("index-url", []), *settings.get("extra-index-url", [])]
    places = [*settings.get("find-links", []), *(f"{each.rstrip('/')}/torch/" for each in indexes)]
    if not any(has_cpu_build(place, version, settings) for place in places):
        print(
            f"warning: no CPU build of torch {version} at {index} or in the places of pip's configuration: "
            "the default index gives the build for CUDA, 5.7 GB on the disk",
            file=sys.stderr,
        )
    return None


def has_cpu_build(place: str, version: str, settings: Settings) -> bool:
    """Return whether a folder or a page of links has torch's CPU build for this Python and machine."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = rf"torch-{re.escape(version)}(\+|%2B)cpu-{python}-{python}-\w*{platform.machine()}"
    return re.search(wheel, _listing(place, settings)) is not None


def _listing(place: str, settings: Settings) -> str:
    path = Path(urllib.request.url2pathname(place.removeprefix("file://")))
    try:
        if path.is_dir():
            return "\n".join([*os.listdir(path), *(page.read_text() for page in path.glob("index.html"))])
        trusted = ssl.create_default_context(cafile=next(iter(settings.get("cert", [])), None))
        with urllib.request.urlopen(_with_password(place), timeout=20, context=trusted) as page:
            text: str = page.read().decode(errors="replace")
            return text
    except (OSError, ValueError, http.client.HTTPException):
        return ""


def _with_password(place: str) -> urllib.request.Request:
    """Return the request of a page. The user and password of its address go into a header, as in pip."""
    parts = urllib.parse.urlsplit(place)
    user, is_there, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if is_there:
        request.add_header("Authorization", f"Basic {base64.b64encode(urllib.parse.unquote(user).encode()).decode()}")
    return request


def all_extras(names: Iterable[str]) -> set[str]:
    """Return these extras of pyproject.toml and their parts."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found, waiting = set[str](), [*names]
    while waiting:
        name = waiting.pop()
        if name not in table:
            sys.exit(f"pyproject.toml has no extra {name!r}; there are {', '.join(table)}")
        found.add(name)
        parts = (re.fullmatch(r"lightwell\[(.*)\]", each) for each in table[name])
        waiting += [each for part in parts if part for each in part[1].split(",") if each not in found]
    return found


def find_uv(python: Path) -> str | None:
    """Return uv: PATH's, or the environment's, into which pip installs it; None if it cannot be had."""
    own = python.with_name("uv")
    if (found := shutil.which("uv")) or own.exists():
        return found or str(own)
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(LOCK), "uv"]
    return str(own) if subprocess.run(command, check=False).returncode == 0 else None


def make_environment(folder: Path) -> Path:
    """Make the virtual environment if it is not there; return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv")
        if uv is None:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        else:  # with pip, which users expect, and nothing else
            subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], check=True)
            command = [uv, "pip", "install", "--quiet", "--python", str(python), "pip"]
            subprocess.run(command, env=uv_environment(pip_settings()), check=True)
    return python


def install(folder: Path, extras: set[str], index: str) -> bool:
    """Install the checkout and the default model; return whether the model is there.

    Raises CalledProcessError if the checkout cannot be installed.
    """
    python, settings = make_environment(folder), pip_settings()
    uv, index_to_add = find_uv(python), torch_index(index, settings)
    editable = ["--editable", f".[{','.join(sorted(extras))}]" if extras else "."]
    editable += ["--editable", "clients/python"]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(LOCK)]
    ways = [([*pip, *(["--extra-index-url", index_to_add] if index_to_add else [])], dict(os.environ))]
    if uv is not None:
        limits = [LOCK.name, *settings.get("constraint", [])]
        command = [uv, "pip", "install", "--python", str(python), *(f"--constraint={each}" for each in limits)]
        settings["extra-index-url"] = [*([index_to_add] if index_to_add else []), *settings.get("extra-index-url", [])]
        ways.insert(0, (command, uv_environment(settings)))
    for command, environment in ways:
        done = subprocess.run([*command, *editable], cwd=ROOT, env=environment, check=False)
        if done.returncode == 0:
            break
        print(f"{command[0]} could not install the packages (status {done.returncode})", file=sys.stderr)
    done.check_returncode()
    status = subprocess.run([python, "-c", "import lightwell_smollm2"], capture_output=True, check=False).returncode
    if status:
        status = subprocess.run([*command, MODEL], cwd=ROOT, env=environment, check=False).returncode
    if not extras and uv is not None and Path(uv).parent == python.parent:  # it has done its work
        subprocess.run([*pip[:3], "uninstall", "--quiet", "--yes", "uv"], check=False)
    if status:
        print(f"{MODEL} could not be installed: `lightwell serve` needs the name of a model", file=sys.stderr)
    return not status


def compile_lock(output: Path, options: Sequence[str], python: Path) -> int:
    """Write the versions that satisfy pyproject.toml and the client's. The file's own versions stay if they do."""
    uv = find_uv(python)
    if uv is None:
        sys.exit("uv compiles the versions, and it cannot be installed")
    environment = uv_environment(pip_settings(), ("index-url", "cert", "timeout"))
    command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--all-extras", "--no-annotate"]
    command += [
        "--no-emit-package=lightwell-smollm2",
        "--no-emit-package=lightwell-client",
        "--custom-compile-command=make lock",
        *options,
    ]
    command += ["pyproject.toml", "clients/python/pyproject.toml", "--output-file", str(output)]
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="", help="of pyproject.toml, separated by commas")
    parser.add_argument("--torch-index", default=CPU_INDEX, metavar="URL", help="where torch's CPU build is")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="FOLDER")
    parser.add_argument("--lock", type=Path, metavar="FILE")
    parser.add_argument("--upgrade", action="append_const", const="--upgrade", default=[], help="with --lock")
    parser.add_argument("--print-torch-index", metavar="URL")
    options = parser.parse_args()
    if options.print_torch_index:
        index = torch_index(options.print_torch_index.rstrip("/"), pip_settings())
        print(f"--extra-index-url {index}" if index else "")
        return 0
    if options.lock:
        return compile_lock(options.lock, options.upgrade, make_environment(options.venv))
    extras, stamp = all_extras(filter(None, options.extras.split(","))), options.venv / ".installed"
    if stamp.exists() and stamp.stat().st_mtime > max((ROOT / name).stat().st_mtime for name in MADE_OF):
        installed = {*stamp.read_text().split()}
        if extras <= installed:
            return 0
        extras |= installed
    try:
        if install(options.venv, extras, options.torch_index.rstrip("/")):
            stamp.write_text(" ".join(sorted(extras)))
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
