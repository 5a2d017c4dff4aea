"""Starts that end before anything is served, and the line with the address: in process, without a server."""

import errno
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightwell.server.config.settings import Settings
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.lifecycle import processes
from lightwell.server.lifecycle.model_host import ModelHosts, ServerGaveUp
from lightwell.server.observability.metrics import ModelMetrics

WORKERS = "lightwell.server.lifecycle.worker_process"
PROCESSES = "lightwell.server.lifecycle.processes"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine's folder of temporary files; a start sets signal handlers, which are restored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def start() -> None:
    def never(lifespan: object) -> None:
        raise AssertionError("nothing is served")

    settings = Settings(port=0)
    hosts, slot = ModelHosts(1, print), ModelSlot(settings, ["none"], ModelMetrics())

    def make(address: str) -> processes.LightwellServer:
        hosts.add(slot, settings.engine_config(Path("no-folder")), {})
        return processes.LightwellServer(settings, hosts, never, print)

    processes.run(settings, hosts, make, "none")


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        (f"{PROCESSES}.possible_connections", OSError(24, "Too many"), "the server could not be set up: .*Too many$"),
        (f"{WORKERS}.prepare_environment", FileNotFoundError(2, "No", "a.txt"), "no worker could be .*'a.txt'$"),
        (
            "tempfile.mkdtemp",
            OSError(errno.ENOSPC, "No space left"),
            "the folder for the workers' socket cannot be created: .*No space",
        ),
    ],
)
def test_what_fails_is_named_and_leaves_no_folder(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: OSError, said: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(place, fail)
    with pytest.raises(ServerGaveUp, match=f"^{said}"):
        start()
    assert not list(tmp.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_server_is_set_up_leaves_no_folder(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def is_signalled(wanted: int) -> int:
        signal.raise_signal(number)
        return wanted

    monkeypatch.setattr(processes, "possible_connections", is_signalled)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 128 + number
    assert not list(tmp.iterdir())


def test_no_place_for_the_folder_names_what_would_be_one(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp / "nowhere"))
    with pytest.raises(
        ServerGaveUp, match=r"^the folder for the workers' socket cannot be created: .*set TMPDIR to another folder$"
    ):
        start()


def test_the_address_is_written_with_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that it is one write: otherwise a line of the log, which another thread writes, may come between the two
    and look like a part of the address.
    """
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=pieces.append, flush=lambda: None))
    processes._print("Lightwell is loading fables")
    assert pieces == ["Lightwell is loading fables\n"]


def test_an_address_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        processes._print("Lightwell is loading fables")
    assert caplog.messages == ["stdout takes nothing: [Errno 28] No space left on device"]
