"""What happens to a real server, around the fake engine, when its surroundings fail: sockets, disks, repeated kills."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.lifecycle.processes import bind
from tests.server.fake_engine import expected_tokens
from tests.server.running import ROOT, RunningServer, is_running, running_server, wait_for

SHORT = {"prompt": [1, 2, 3], "max_tokens": 5}


def kill_worker(server: RunningServer) -> None:
    os.kill(server.worker_pid(), signal.SIGKILL)


def wait_restarts(server: RunningServer, count: int) -> None:
    wait_for(lambda: server.state()["restarts"] == count, "another worker is started")


def answers(server: RunningServer) -> bool:
    return bool(server.post("/generate", SHORT).json().get("tokens") == expected_tokens((1, 2, 3), 5))


def test_without_its_socket_folder_a_worker_goes_on_and_the_next_one_finds_another() -> None:
    with running_server() as server:
        server.wait_ready()
        for folder in server.tmp.glob("lightwell-*"):
            shutil.rmtree(folder)
        assert answers(server)
        kill_worker(server)
        wait_restarts(server, 1)
        server.wait_ready()
        assert answers(server)
        assert "is gone: listening anew" in server.output
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert not list(server.tmp.glob("lightwell-*"))


def test_a_worker_that_is_killed_again_and_again_ends_the_server_with_the_reason() -> None:
    with running_server() as server:
        server.wait_ready()
        told = ""
        for count in range(1, 6):
            kill_worker(server)
            if count in (2, 3, 4):  # the first is replaced at once
                told = wait_for(lambda: waiting_reason(server), "the server says that it waits")
                assert f"ended (SIGKILL), {count} times lately" in told
            if count < 5:
                wait_restarts(server, count)
                server.wait_ready()
        assert server.wait_exit() == 1
        assert server.output.splitlines()[-1] == ("lightwell: error: the worker ended 5 times, last by SIGKILL")
        server.wait_all_gone()


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "stuck"])
def test_a_worker_that_hangs_while_it_loads_is_killed_and_replaced(tmp_path: Path, is_stopped: bool) -> None:
    hangs = tmp_path / "the next load hangs"
    hangs.touch()
    # Long enough for a worker to start on a busy machine. One that is slower still is killed too, and another started.
    with running_server("--load-timeout", "6", FAKE_LOAD_HANGS=str(hangs)) as server:
        wait_for(lambda: server.status("/health/live") == 200, "the server is alive")
        wait_for(lambda: server.get("/health/ready").text.endswith("loading the model: 50 %"), "it loads")
        worker = server.worker_pid()
        if is_stopped:
            os.kill(worker, signal.SIGSTOP)
        assert server.post("/generate", SHORT).json()["error"]["code"] == "not_ready"
        wait_for(lambda: server.state()["restarts"] >= 1, "another worker is started")
        assert not is_running(worker)
        server.wait_ready()
        assert answers(server)
        assert "it got no further in loading the model for more than 6 s (--load-timeout)" in server.output
        assert server.status("/health/live") == 200


def waiting_reason(server: RunningServer) -> str:
    answer = server.get("/health/ready")
    return answer.text if answer.status_code == 503 and "times lately" in answer.text else ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_under_the_log_stops_nothing(tmp_path: Path, log_format: str) -> None:
    port = free_port()
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.fake_server", "--port", str(port), "--log-format", log_format],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
            stdout=full,
            stderr=full,
            start_new_session=True,
        )
        server = Elsewhere(process, tmp_path / "none", tmp_path)
        server.address = f"http://127.0.0.1:{port}"
        try:
            server.wait_ready()
            assert answers(server)
            kill_worker(server)
            wait_restarts(server, 1)
            server.wait_ready()
            assert answers(server)
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
        finally:
            server.http.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Elsewhere(RunningServer):
    """A server whose address is known without its output."""

    address = ""

    @property
    def url(self) -> str:
        return self.address


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_where_no_folder_can_be_made_the_start_ends_with_one_line(tmp_path: Path) -> None:
    """Start as on a disk without room. Python looks for a folder it can write to; if there is none, it says so."""
    done = subprocess.run(
        [sys.executable, "-c", START_ON_A_FULL_DISK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("lightwell: error: no place for the workers' socket: ")


START_ON_A_FULL_DISK = """
import errno, os, sys, tempfile
from tests.server import fake_server

def no_room(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

tempfile.mkdtemp = no_room
sys.argv[1:] = ["--port", "0"]
sys.exit(fake_server.main())
"""


def test_the_port_is_free_for_the_next_server_when_the_api_process_was_killed() -> None:
    with running_server() as server:
        server.wait_ready()
        port = int(server.url.rpartition(":")[2])
        server.signal(signal.SIGKILL)
        server.wait_exit()
        server.wait_all_gone()
        assert not list(server.tmp.glob("lightwell-*"))
        bind("127.0.0.1", port).close()
