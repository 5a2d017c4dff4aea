"""A server for one command: a child process on a free local port, which ends with the command."""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from lightwell.server.config.setting_names import variable_name
from lightwell.server.terminal.command_errors import CommandError
from lightwell.server.terminal.connection import Connection

_NOT_INHERITED = ("api_key", "api_key_file", "config", "root_path", "log_format")
"""Settings for other servers: their variables are not inherited."""
_FLAGS = ("--host", "127.0.0.1", "--port", "0", "--log-level", "warning", "--shutdown-grace", "0")
_PROGRAM = """\
import ctypes, os, signal, sys
sys.path[:] = {path!r}
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:
    sys.exit(1)
from lightwell.command import main
sys.exit(main())
"""
"""The server's program. On Linux the kernel sends it SIGTERM when the command ends, however that ends."""
_INTERVAL = 0.05
_GRACE = 10.0
"""Seconds that the server has to end."""


@contextlib.contextmanager
def child_server(model: str | None, flags: Sequence[str]) -> Iterator[Connection]:
    """Serve a model with these flags of `lightwell serve` while the block runs. Only this command knows its API key.

    Raises CommandError with the server's own error if it ends before it is ready.
    """
    key = secrets.token_urlsafe(24)
    others = {variable_name(name) for name in _NOT_INHERITED}
    environ = {name: value for name, value in os.environ.items() if name not in others}
    program = _PROGRAM.format(path=sys.path, parent=os.getpid())
    command = [sys.executable, "-P", "-c", program, "serve", *([model] if model else []), *flags, *_FLAGS]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            env=environ | {variable_name("api_key"): key},
            start_new_session=True,  # Ctrl-C reaches only the command
        )
        try:
            while process.poll() is None:
                time.sleep(_INTERVAL)
                if found := re.search(rb"http://\S+", os.pread(output.fileno(), 1 << 16, 0)):
                    connection = Connection(found[0].decode(), key)
                    with contextlib.suppress(CommandError):
                        connection.ask("/health/ready")
                        break
            else:
                log.seek(0)
                lines = log.read().decode(errors="replace").splitlines() or ["the server ended"]
                raise CommandError(lines[-1].removeprefix("lightwell: error: "))
            yield connection
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and wait for it; Ctrl-C meanwhile kills it."""
    process.terminate()
    try:
        process.wait(_GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
