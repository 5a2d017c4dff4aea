"""Fault injection: signals to a server's processes and changes of its files."""

import contextlib
import os
import select
import shutil
import signal
import socket
import time

from benchmarks.fault_load import PICTURES
from benchmarks.fault_subject import Subject, wait_for, wait_mapped

SETTLE_SECONDS = 1.0
"""Seconds of load before a fault and after the server is ready again."""
END_SECONDS = 20.0
"""Seconds within which a server with a grace of one second ends."""


def kill_while_loading(subject: Subject) -> None:
    """Kill the worker, then its successors: one as it imports torch, and one as it reads the weights."""
    pid = subject.kill_worker()
    for name in ("libtorch", "model.safetensors"):
        pid = subject.next_worker(pid)
        wait_mapped(pid, name)
        os.kill(pid, signal.SIGKILL)


def kill_again_and_again(subject: Subject) -> None:
    """Kill each worker as soon as it is ready, until the server gives up."""
    while subject.process.poll() is None:
        if subject.is_ready():
            with contextlib.suppress(ProcessLookupError, AssertionError):
                subject.kill_worker()
        time.sleep(0.05)


def stop_for_a_while(subject: Subject) -> None:
    """Stop the worker until it is called hung, then let it continue."""
    pid = subject.worker()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not subject.is_ready(), "the silence is noticed")
    time.sleep(SETTLE_SECONDS / 2)
    os.kill(pid, signal.SIGCONT)


def stop_for_good(subject: Subject) -> None:
    os.kill(subject.worker(), signal.SIGSTOP)


def stop_while_loading(subject: Subject) -> None:
    """Stop the successor of a worker that was killed."""
    pid = subject.next_worker(subject.kill_worker())
    wait_mapped(pid, "libtorch")
    os.kill(pid, signal.SIGSTOP)


def remove_socket(subject: Subject) -> None:
    """Remove the socket, as a cleaner of /tmp does."""
    folders = list(subject.tmp.glob("lightwell-*"))
    assert folders, "the socket has a folder"
    for folder in folders:
        shutil.rmtree(folder)
    time.sleep(SETTLE_SECONDS)


def remove_socket_and_kill(subject: Subject) -> None:
    """Remove the socket and kill the worker: the next worker needs a socket."""
    remove_socket(subject)
    subject.kill_worker()


def overwrite_weights(subject: Subject) -> None:
    """Overwrite the weights in place, like `cp`. A running server must not be affected; a new one must reject them."""
    weights = subject.model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-(1 << 20) :] = bytes(1 << 20)
    with weights.open("r+b") as file:
        file.write(content)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def truncate_weights(subject: Subject) -> None:
    os.truncate(subject.model / "model.safetensors", 4096)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def remove_model(subject: Subject) -> None:
    shutil.rmtree(subject.model)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def wait(subject: Subject) -> None:
    """Do nothing: the culprit's request causes the fault."""
    time.sleep(2 * SETTLE_SECONDS)


def end_beside_an_unread_answer(subject: Subject) -> None:
    """Send SIGTERM while a client reads nothing of a long answer. Raises subprocess.TimeoutExpired when the server has
    not ended within END_SECONDS.
    """
    body = PICTURES.body.encode()
    head = f"POST {PICTURES.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.create_connection(("127.0.0.1", subject.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        assert select.select([client], [], [], END_SECONDS)[0], "the answer begins"
        subject.process.terminate()
        subject.process.wait(END_SECONDS)
