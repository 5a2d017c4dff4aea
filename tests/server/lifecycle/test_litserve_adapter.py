"""Parts of LitServe 0.2.19 that the server relies on, private ones among them; no other test uses them.

LitServe is pinned: another version must pass these tests before the pin is changed.
"""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.lifecycle.litserve_adapter import WorkerLauncher
from tests.server.running import PATIENCE


@dataclass
class Diary:
    """A worker that records the calls that it gets."""

    path: Path

    def setup(self, worker_id: int, device: str) -> None:
        self.device = device

    def run(self, worker_id: int) -> None:
        self.path.write_text(f"worker {worker_id} runs on {self.device}", encoding="utf-8")


def test_the_version_is_the_one_the_rest_was_proved_with() -> None:
    assert version("litserve") == "0.2.19"


@pytest.mark.parametrize(
    ("launcher", "worker_id", "written"),
    [
        ({"accelerator": "cpu", "num_workers": 3}, 2, "worker 2 runs on cpu"),
        ({"accelerator": "cuda", "cards": (0, 3)}, 1, "worker 1 runs on cuda:3"),
    ],
)
def test_a_worker_is_set_up_for_its_device_and_runs(
    launcher: dict[str, Any], worker_id: int, written: str, tmp_path: Path
) -> None:
    diary = Diary(tmp_path / "diary")
    process = WorkerLauncher(diary, **launcher).launch(worker_id)
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert diary.path.read_text(encoding="utf-8") == written


def test_a_worker_starts_as_it_is_at_that_time(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "before")
    launcher = WorkerLauncher(diary, accelerator="cpu")
    diary.path = tmp_path / "after"
    launcher.launch(0).join(PATIENCE)
    assert [path.name for path in tmp_path.iterdir()] == ["after"]
