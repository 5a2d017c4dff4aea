"""A model folder that changes under a running server: it is noticed, named, and never served next to what was read
before.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

from model.checkpoint.folder import PACKAGED
from server.worker.model_fingerprint import difference, fingerprint
from tests.server.running import running_server, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(PACKAGED, folder)
    return folder


def test_an_untouched_folder_is_the_same(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "README.md").write_text("other words")
    os.utime(folder / "config.json")
    assert difference(before, folder) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: (path / "config.json").write_text("{}"), "config.json was changed"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors was removed"),
        (lambda path: (path / "extra.safetensors").write_bytes(b""), "extra.safetensors was added"),
        (lambda path: os.truncate(path / "model.safetensors", 5000), "model.safetensors was changed"),
        (shutil.rmtree, "tokenizer.json was removed"),
    ],
)
def test_a_change_is_named(folder: Path, change: object, says: str) -> None:
    before = fingerprint(folder)
    change(folder)  # type: ignore[operator]
    found = difference(before, folder)
    assert found is not None
    assert found.startswith("model_changed: ")
    assert says in found


@pytest.mark.parametrize("in_place", [True, False])
def test_a_large_file_is_told_apart_though_size_and_header_are_the_same(tmp_path: Path, in_place: bool) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(20 << 20))
    os.utime(weights, (1, 1))
    before = fingerprint(tmp_path)
    other = weights if in_place else tmp_path / "other"
    with other.open("r+b" if in_place else "wb") as file:
        file.seek((20 << 20) - 1)
        file.write(b"\1")
    if not in_place:
        os.utime(other, (1, 1))
        other.rename(weights)
    assert difference(before, tmp_path) is not None


def test_a_worker_that_would_load_other_weights_is_not_started_again(folder: Path) -> None:
    with running_server("serve", str(folder), "--kv-cache-memory", "8MiB", module="server") as server:
        server.wait_ready()
        body = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
        before = server.post("/v1/completions", body).json()["choices"]
        weights = folder / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-4096:] = bytes(4096)
        with weights.open("r+b") as file:  # in place: the weights that run were copied when they were read
            file.write(content)
        assert server.post("/v1/completions", body).json()["choices"] == before
        workers = [int(pid) for pid in children(server.process.pid) if "spawn_main" in command(pid)]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        assert server.wait_exit() == 1
        last = server.output.splitlines()[-1]
        assert last.startswith("lightwell: error: model_changed: ")
        assert "model.safetensors was changed" in last
        wait_for(lambda: not list(server.tmp.glob("lightwell-*")), "nothing is left behind")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
