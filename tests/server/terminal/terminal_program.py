"""A program on a pseudo-terminal: a test reads its output, and types for a person."""

import os
import pty
import re
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.server.running import LOAD_PATIENCE
from tests.support.processes import descendants, kill

_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>78])")
CTRL_C, CTRL_D = "\x03", "\x04"


class TerminalProgram:
    """A program of this Python on a terminal of 100 columns."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.raw = ""
        """Output of the program, with control sequences."""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(
                {"TERM": "xterm", "COLUMNS": "100", "LINES": "40", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
            )
            os.execv(sys.executable, [sys.executable, *arguments])

    @property
    def shown(self) -> str:
        """Output of the program, without control sequences."""
        return _CONTROL.sub("", self.raw)

    def expect(self, text: str, after: int = 0) -> int:
        """Read until the text is shown, from a position of `shown` on; return the position behind it."""
        end = time.monotonic() + LOAD_PATIENCE
        while text not in self.shown[after:]:
            assert time.monotonic() < end, f"{text!r} is not in {self.shown[after:]!r}"
            assert self._read(), f"the program ended; {text!r} is not in {self.shown[after:]!r}"
        return self.shown.index(text, after) + len(text)

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait(self) -> int:
        """Read until the program ends, and return its exit status."""
        end = time.monotonic() + LOAD_PATIENCE
        while self._read():
            assert time.monotonic() < end, f"the program does not end after {self.shown[-200:]!r}"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Close the terminal, as a person closes a window."""
        os.close(self._terminal)

    def _read(self) -> bool:
        """Read for a second at most; return False once nothing can come any more."""
        if select.select([self._terminal], [], [], 1.0)[0]:
            with suppress(OSError):  # the program has closed its end
                if data := os.read(self._terminal, 1 << 16):
                    self.raw += data.decode(errors="replace")
                    return True
            return False
        return True


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[TerminalProgram]:
    """Run `lightwell ARGUMENTS` on a terminal; nothing of it is left afterwards."""
    program = TerminalProgram(["-m", "lightwell", *arguments], environment)
    try:
        yield program
    finally:
        kill(descendants(program.pid))
        with suppress(ChildProcessError):
            os.waitpid(program.pid, 0)
        with suppress(OSError):
            program.close()
