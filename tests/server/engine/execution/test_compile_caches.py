"""Folders for compiled code: those that are told, unless they cannot be written."""

import mmap
import os
from pathlib import Path

import pytest

from server.engine.execution.compile_caches import VARIABLES, use_writable_caches


def test_a_folder_that_can_be_written_is_made_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "cache" / "triton"
    monkeypatch.setenv(VARIABLES[0], str(told))
    monkeypatch.delenv(VARIABLES[1], raising=False)
    use_writable_caches(tmp_path / "private")
    assert os.environ[VARIABLES[0]] == str(told)
    assert list(told.iterdir()) == []
    assert VARIABLES[1] not in os.environ


def test_a_folder_from_which_nothing_may_be_run_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's --tmpfs is mounted noexec: there the kernel refuses to map a file as code."""

    def refuse(*args: object, prot: int) -> None:
        assert prot & mmap.PROT_EXEC
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setenv(VARIABLES[0], str(tmp_path / "cache"))
    use_writable_caches(tmp_path / "private")
    assert f"{VARIABLES[0]}={tmp_path}/cache is not usable (Operation not permitted)" in caplog.text
    assert f"nor is {tmp_path}/private" in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_cannot_gives_way_to_a_private_one_with_a_warning(
    is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")  # root may write to any folder, but not into a file
    for name in VARIABLES:
        monkeypatch.setenv(name, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    use_writable_caches(tmp_path / "private" if is_told else None)
    for name in VARIABLES:
        assert Path(os.environ[name]).is_relative_to(tmp_path / "private" if is_told else tmp_path)
        assert "file" not in os.environ[name]
        assert f"{name}={tmp_path}/file/cache is not usable (Not a directory)" in caplog.text
