"""Fingerprints of a model folder: a change is noticed and named (`test_real_worker.py` changes a served folder)."""

import os
import shutil
from pathlib import Path

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.worker.model_fingerprint import difference, fingerprint


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
    change(folder)
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
