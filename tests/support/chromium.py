"""Drives a tab of headless Chromium by plain DevTools messages, so that it keeps no more than a user's tab does.

The driver of a tab may add to what it holds: Playwright has the Network domain enabled for as long as it is attached,
and Chromium then keeps a record of every request. Here no domain is enabled, clicks and keys are real input events, and
what is read are numbers, never handles.

Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.processes import allocated_bytes, descendants, end

WIDTH, HEIGHT = 1440, 1000
ANSWER_WITHIN = 120.0
POLL_SECONDS = 0.005
COLLECTIONS, COLLECTION_PAUSE_SECONDS = 4, 0.25
"""Garbage collections before a reading, and the seconds between them. Two readings without a click between them are
then within 0.1 MB of each other; after a single collection, within 0.6 MB.
"""
KEYS = {"ArrowRight": 39, "ArrowDown": 40}
"""Windows' virtual key codes, which the protocol requires."""


class ChromiumFailed(RuntimeError):
    """Chromium did not start or refused a message, or a script in the page raised; the message quotes it."""


def find_chromium() -> str | None:
    """Return the path of Debian's Chromium, of the headless shell if there is one: it takes an eighth less CPU time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@dataclass(frozen=True)
class Memory:
    """Bytes of a tab after garbage collection."""

    script: int  # V8's heap: objects and compiled code
    embedder: int  # Blink's: elements, styles, events
    buffers: int  # behind ArrayBuffers
    renderer: int  # what its whole process allocated, shared memory by its share

    @property
    def heap(self) -> int:
        return self.script + self.embedder + self.buffers


class Tab:
    def __init__(self, socket: ClientConnection, browser_pid: int) -> None:
        self._socket = socket
        self._browser_pid = browser_pid
        self._last_id = 0

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of one message.

        Raises:
            ChromiumFailed: Chromium refused it.
            TimeoutError: no answer within `ANSWER_WITHIN` seconds.
        """
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_WITHIN))
            if message.get("id") != self._last_id:
                continue  # an event
            if "error" in message:
                raise ChromiumFailed(f"{method}: {message['error']['message']}")
            result: dict[str, Any] = message["result"]
            return result

    def evaluate(self, expression: str) -> Any:
        """Return the value of a script in the page, which must be plain data."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise ChromiumFailed(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Ask the page until a script's value is true."""
        give_up = time.monotonic() + ANSWER_WITHIN
        while not self.evaluate(condition):
            if time.monotonic() > give_up:
                raise TimeoutError(f"not true within {ANSWER_WITHIN:.0f} s: {condition}")
            time.sleep(POLL_SECONDS)

    def navigate(self, url: str) -> None:
        """Start loading an address."""
        failure = self.send("Page.navigate", url=url).get("errorText")
        if failure:
            raise ChromiumFailed(f"{url}: {failure}")

    def count(self, selector: str) -> int:
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str, number: int = 0, across: float = 0.5, down: float = 0.5) -> None:
        """Click on one of the elements of a selector, at these shares of its width and height."""
        left, top, width, height = self.evaluate(
            f"""(() => {{
              const element = document.querySelectorAll({json.dumps(selector)})[{number}];
              element.scrollIntoView({{block: "nearest"}});
              const {{x, y, width, height}} = element.getBoundingClientRect();
              return [x, y, width, height];
            }})()"""
        )
        place = {"x": left + across * width, "y": top + down * height}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str) -> None:
        """Press and release one of `KEYS`."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def memory(self) -> Memory:
        """Return the memory in use after several garbage collections: each may release objects for the next one."""
        for _ in range(COLLECTIONS):
            self.send("HeapProfiler.collectGarbage")
            time.sleep(COLLECTION_PAUSE_SECONDS)
        usage = self.send("Runtime.getHeapUsage")
        return Memory(
            script=int(usage["usedSize"]),
            embedder=int(usage["embedderHeapUsedSize"]),
            buffers=int(usage["backingStorageSize"]),
            renderer=allocated_bytes(self._renderer_pid()),
        )

    def _renderer_pid(self) -> int:
        """Return the id of the page's process: there may be others for future tabs, which are smaller."""
        return max(filter(is_renderer, descendants(self._browser_pid)), key=allocated_bytes)


def is_renderer(pid: int) -> bool:
    try:
        return b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended while we looked
        return False


@contextmanager
def open_tab(program: str, arguments: Sequence[str] = ()) -> Iterator[Tab]:
    """Open the one tab of a Chromium that is started from `program` with an empty profile, and ends with the block.

    Raises:
        ChromiumFailed: it did not start.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program, "--headless", f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}",
            "--remote-debugging-port=0",  # any free one, on the loopback interface
            "--no-sandbox",  # in containers, where this may run as root, Chromium's own cannot start
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            *arguments, "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(debugger_url(process, Path(profile)), max_size=None, compression=None) as socket:
                yield Tab(socket, process.pid)
        finally:
            end(process)


def debugger_url(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Return the WebSocket of the one tab of a Chromium that is starting with this profile."""
    written = profile / "DevToolsActivePort"  # its first line is the port
    give_up = time.monotonic() + ANSWER_WITHIN
    while time.monotonic() < give_up and process.poll() is None:
        port = written.read_text().partition("\n")[0] if written.exists() else ""
        if port:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=ANSWER_WITHIN) as answer:
                urls = [tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page"]
            if urls:
                return str(urls[0])
        time.sleep(0.05)
    raise ChromiumFailed(f"chromium did not open a tab (status {process.poll()})")
