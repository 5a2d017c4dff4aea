"""Lines of the log: no line can be forged, a slow reader delays nothing, and lost lines are reported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import ROOT

SET_UP = """
import asyncio, gc, logging, os, sys, threading, time, warnings
from lightwell.server.observability.logs import configure_logging, flush, num_dropped_lines
log = logging.getLogger("test")
"""


def output_of(code: str, style: str = "json", level: str = "info") -> list[str]:
    """Set up the log in a new process, run the code there, and return the lines of its stderr."""
    script = f"{SET_UP}\nconfigure_logging({level!r}, {style!r}, 'worker-0')\n{code}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.splitlines()


def test_an_event_is_one_object_with_its_time_and_place() -> None:
    (line,) = output_of("log.warning('%d of %s', 3, 'them', extra={'fields': {'more': [1]}})")
    event = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
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
    code = "from lightwell.server.schemas.chat_messages import ChatMessage\n"
    check = "ChatMessage.model_validate({'role': 'secret', 'name': 5555, 'tool_calls': [], 'content': ['words']})"
    event = json.loads(output_of(code + around.format(check))[-1])
    assert "ValidationError: ChatMessage: string_type" in event["exception"]
    assert "5555" not in event["exception"].replace(check, "")
    assert "'words'" not in event["exception"].replace(check, "")


def test_warnings_wrong_calls_and_lines_of_libraries_are_events() -> None:
    library = "logging.getLogger('uvicorn.error').warning('Invalid HTTP request received.')"
    lines = output_of(f"warnings.warn('mind this')\nlog.warning('%d of %s', 'x')\n{library}")
    warning, wrong, of_library = map(json.loads, lines)
    assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    assert "mind this" in warning["message"]
    assert "do not fit" in wrong["message"]
    assert of_library["logger"] == "uvicorn.error"


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
for _ in range(600):
    flush()  # waits for a second at most
log.warning("after it")
"""


def test_in_text_a_line_names_its_request_once_however_short_the_id_is() -> None:
    code = """
from lightwell.server.observability.access_log import RequestRecord, current_record
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
        _, log = process.communicate("go on\n", timeout=600)
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
        ["bash", "-c", command, sys.executable, code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout == "fine\n"
