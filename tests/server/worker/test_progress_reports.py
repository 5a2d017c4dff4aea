"""Reports of progress: one after work was done, and none while no work is done, whichever thread is alive."""

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from model.kernels.library import note_progress
from server.ipc import messages
from server.ipc.frames import FrameDecoder
from server.ipc.link import WorkerLink
from server.worker import progress_reports


class Pauses:
    """The pauses of the thread that reports: the test ends each, and waits for the next."""

    def __init__(self) -> None:
        self._begun, self._ended = threading.Semaphore(0), threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        self._begun.release()
        assert self._ended.acquire(timeout=60)

    def pass_one(self) -> None:
        """End the current pause, and wait for the next one."""
        self._ended.release()
        self.wait()

    def wait(self) -> None:
        assert self._begun.acquire(timeout=60)

    def end(self) -> None:
        self._ended.release()


class Reports:
    """Messages at the other end of the link."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder()

    def take(self) -> list[messages.FromWorker]:
        try:
            received = self._socket.recv_into(self._decoder.space())
        except BlockingIOError:
            return []
        return [messages.decode_from_worker(frame.header) for frame in self._decoder.advance(received)]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    monkeypatch.setattr(progress_reports, "time", SimpleNamespace(sleep=pauses.sleep))
    return pauses


@pytest.fixture
def reports(pauses: Pauses) -> Iterator[Reports]:
    mine, theirs = socket.socketpair()
    theirs.setblocking(False)
    link = WorkerLink(mine)
    progress_reports.report_progress(link)
    pauses.wait()
    yield Reports(theirs)
    link.close()
    note_progress()
    pauses.end()  # the thread finds the link closed, and ends
    theirs.close()


def test_work_is_reported_once_and_idle_time_never(reports: Reports, pauses: Pauses) -> None:
    for _ in range(3):
        pauses.pass_one()
        assert reports.take() == []
    note_progress()
    note_progress()
    pauses.pass_one()
    assert reports.take() == [messages.Heartbeat(is_idle=False)]
    pauses.pass_one()
    assert reports.take() == []
