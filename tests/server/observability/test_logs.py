"""Lines of the log: no line can be forged, a slow reader delays nothing, and lost lines are reported."""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import ROOT, running_server

SET_UP = """
import asyncio, gc, logging, os, sys, threading, time, warnings
from server.observability.logs import configure_logging, flush, num_dropped_lines
log = logging.getLogger("test")
"""


def output_of(code: str, style: str = "json", level: str = "info") -> list[str]:
    """Set up the log in a new process, run the code there, and return the lines of its stderr."""
    script = f"{SET_UP}\nconfigure_logging({level!r}, {style!r}, 'worker-0')\n{code}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.splitlines()


def event_of(code: str) -> dict[str, object]:
    (line,) = output_of(code)
    event: dict[str, object] = json.loads(line)
    return event


def test_an_event_is_one_object_with_its_time_and_place() -> None:
    event = event_of("log.warning('%d of %s', 3, 'them', extra={'fields': {'more': [1]}})")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(event["time"]))
    assert (event["level"], event["logger"], event["process"]) == ("warning", "test", "worker-0")
    assert (event["message"], event["more"]) == ("3 of them", [1])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("log.exception('no') if not sys.exc_info()[0] else None\nraise ValueError('two\\nlines')", "ends the process"),
        ("t = threading.Thread(target=lambda: 1 / 0, name='t'); t.start(); t.join()", "ended thread t"),
        ("class A:\n  def __del__(self): 1 / 0\na = A(); del a", "was ignored"),
        (
            "async def f():\n  asyncio.get_running_loop().call_soon(lambda: 1 / 0)\n"
            "  await asyncio.sleep(0)\nasyncio.run(f())",
            "Exception in callback",
        ),
    ],
)
def test_an_exception_that_nobody_catches_is_an_event(code: str, says: str) -> None:
    event = json.loads(output_of(code)[-1])
    assert says in event["message"]
    assert event["exception"].startswith("Traceback")


@pytest.mark.parametrize("around", ["{}", "try:\n  {}\nexcept ValueError as e:\n  raise KeyError('k') from e"])
def test_values_that_pydantic_refuses_are_not_logged(around: str) -> None:
    code = "from server.schemas.chat_messages import ChatMessage\n"
    check = "ChatMessage.model_validate({'role': 'secret', 'name': 5555, 'tool_calls': [], 'content': ['words']})"
    event = json.loads(output_of(code + around.format(check))[-1])
    assert "ValidationError: ChatMessage: string_type" in event["exception"]
    assert "5555" not in event["exception"].replace(check, "")
    assert "'words'" not in event["exception"].replace(check, "")


def test_a_warning_is_an_event() -> None:
    event = event_of("warnings.warn('mind this')")
    assert (event["logger"], event["level"]) == ("py.warnings", "warning")
    assert "mind this" in str(event["message"])


def test_a_log_call_that_is_wrong_is_an_event_too() -> None:
    assert "do not fit" in str(event_of("log.warning('%d of %s', 'x')")["message"])


def test_lines_of_libraries_are_events() -> None:
    event = event_of("logging.getLogger('uvicorn.error').warning('Invalid HTTP request received.')")
    assert event["logger"] == "uvicorn.error"


def test_in_text_nothing_can_begin_a_line() -> None:
    forged = "2026-01-01T00:00:00.000Z ERROR api server: made up"
    lines = output_of(f"log.warning('asked for %s', 'x\\n{forged}\\x1b[2J')", "text")
    assert len(lines) == 1
    assert lines[0].endswith(rf"WARNING worker-0 test: asked for x\n{forged}\x1b[2J")
    lines = output_of(f"log.error('it failed', exc_info=ValueError('x\\n{forged}'))", "text")
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]


LOG_A_LOT = """
started = time.monotonic()
for i in range(3000):
    log.warning("%s", "x" * 10_000)
print(num_dropped_lines(), flush=True)
sys.stdin.readline()
flush()
log.warning("after it")
"""


def test_in_text_a_line_names_its_request_once_however_short_the_id_is() -> None:
    code = """
from server.observability.access_log import RequestRecord, current_record
current_record.set(RequestRecord("a"))
log.info("a GET /x 200")
log.info("what happened")
"""
    named, other = output_of(code, style="text")
    assert named.endswith("a GET /x 200")
    assert other.endswith("what happened request_id=a")


def test_a_reader_that_stalls_holds_nobody_up_and_is_told_how_much_it_missed(tmp_path: Path) -> None:
    script = f"{SET_UP}\nconfigure_logging('info', 'json')\n{LOG_A_LOT}"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        num_dropped = int(process.stdout.readline())  # the log is not read, and the process still runs
        assert num_dropped > 0
        _, log = process.communicate("go on\n", timeout=60)
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert f"{num_dropped} log lines were dropped: stderr did not take them" in messages
    assert len(messages) == 3000 - num_dropped + 2
    assert process.returncode == 0


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(true)"])
def test_a_process_whose_log_goes_nowhere_goes_on(redirection: str) -> None:
    code = f"{SET_UP}\nconfigure_logging('info', 'text')\n" + (
        "import socket\n"
        "a, b = socket.socketpair()\n"  # would get number 2, were it free
        "for i in range(100): log.warning('%s', 'x' * 1000)\n"
        "flush()\n"
        "b.setblocking(False)\n"
        "try: print('leaked', len(b.recv(9)) + len(a.recv(9)))\n"
        "except BlockingIOError: print('fine')\n"
    )
    command = f'"$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "fine\n"


@pytest.mark.nightly
def test_the_server_answers_although_nobody_reads_its_log() -> None:
    unread, stderr = os.pipe()
    fcntl.fcntl(stderr, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with running_server(stderr=stderr) as server:
            server.wait_ready()
            headers = {"x-request-id": "r" * 128}
            for _ in range(60):  # each request is a line: the pipe is full after some twenty
                body = {"prompt": [1], "max_tokens": 1}
                answer = server.http.post(server.url + "/fake", json=body, headers=headers)
                assert answer.status_code == 200
            os.close(unread)
            unread = -1
            assert server.post("/fake", {"prompt": [1], "max_tokens": 1}).status_code == 200
    finally:
        for descriptor in (unread, stderr):
            if descriptor >= 0:
                os.close(descriptor)
