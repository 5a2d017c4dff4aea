"""The folder for compiled code: the given folder, unless it is not writable."""

import mmap
import os
from pathlib import Path

import pytest

from lightwell.server.engine.execution.compile_cache import VARIABLE, use_writable_cache


def test_a_folder_that_can_be_written_is_made_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "cache" / "triton"
    monkeypatch.setenv(VARIABLE, str(told))
    use_writable_cache(tmp_path / "private")
    assert os.environ[VARIABLE] == str(told)
    assert list(told.iterdir()) == []


def test_a_folder_from_which_nothing_may_be_run_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's --tmpfs is mounted noexec: there the kernel refuses to map a file as code."""

    def refuse(*args: object, prot: int) -> None:
        assert prot & mmap.PROT_EXEC
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    use_writable_cache(tmp_path / "private")
    assert f"{VARIABLE}={tmp_path}/cache is not usable (Operation not permitted)" in caplog.text
    assert f"{tmp_path}/private/{VARIABLE.lower()} is not writable either" in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_cannot_gives_way_to_a_private_one_with_a_warning(
    is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")  # root may write to any folder, but not into a file
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    use_writable_cache(tmp_path / "private" if is_told else None)
    assert Path(os.environ[VARIABLE]).is_relative_to(tmp_path / "private" if is_told else tmp_path)
    assert "file" not in os.environ[VARIABLE]
    assert f"{VARIABLE}={tmp_path}/file/cache is not usable (Not a directory)" in caplog.text
