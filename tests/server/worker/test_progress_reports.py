"""Reports of progress: one after work was done, and none while no work is done, whichever thread is alive."""

import socket
import threading
from types import SimpleNamespace

import pytest

from lightwell.model.kernels.library import note_progress
from lightwell.server.ipc import messages
from lightwell.server.ipc.frames import FrameDecoder
from lightwell.server.ipc.link import WorkerLink
from lightwell.server.worker import progress_reports


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


def test_work_is_reported_once_and_idle_time_never(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, decoder = Pauses(), FrameDecoder()
    monkeypatch.setattr(progress_reports, "time", SimpleNamespace(sleep=pauses.sleep))
    mine, theirs = socket.socketpair()
    theirs.setblocking(False)
    link = WorkerLink(mine)

    def next_reports() -> list[messages.FromWorker]:
        pauses.pass_one()
        try:
            received = theirs.recv_into(decoder.space())
        except BlockingIOError:
            return []
        return [messages.decode_from_worker(frame.header) for frame in decoder.advance(received)]

    progress_reports.report_progress(link)
    pauses.wait()
    assert [next_reports() for _ in range(3)] == [[], [], []]
    note_progress()
    note_progress()
    assert [next_reports() for _ in range(2)] == [[messages.Heartbeat(is_idle=False)], []]
    link.close()
    note_progress()
    pauses.end()  # the thread finds the link closed, and ends
    theirs.close()
