"""Progress reports: a thread reports to the API process that this worker makes progress while it loads or runs a step.

A report is sent only after progress since the last one (`model.kernels.library`); an unconditional one would hide a
stuck loop.
"""

import contextlib
import threading
import time

from lightwell.model.kernels.library import progress
from lightwell.server.ipc import messages
from lightwell.server.ipc.link import WorkerLink

REPORT_INTERVAL = 0.5
"""Seconds between two reports."""
_REPORT = messages.encode(messages.Heartbeat(is_idle=False))


def report_progress(link: WorkerLink) -> None:
    """Report progress until the link ends."""
    threading.Thread(target=_report, args=(link,), name="progress", daemon=True).start()


def _report(link: WorkerLink) -> None:
    reported = progress()
    with contextlib.suppress(ConnectionError):  # the link's own thread ends the process
        while not link.is_lost:
            time.sleep(REPORT_INTERVAL)
            if (done := progress()) != reported:
                reported = done
                link.send(*_REPORT)
