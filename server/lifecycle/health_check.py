"""Readiness check of the server in this container: `lightwell health`.

A health check is not given the server's options, so it reads them from the list of processes.
"""

import http.client
from pathlib import Path

_TIMEOUT = 4.0
"""Seconds to wait for an answer, less than a health check's own timeout."""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses at which a server that listens on all addresses is reached."""


def serve_arguments(proc: Path = Path("/proc")) -> list[str]:
    """Return the arguments after `lightwell serve` of the oldest server on this machine; empty if there is none."""
    for folder in sorted((path for path in proc.glob("[0-9]*")), key=lambda path: int(path.name)):
        try:
            words = (folder / "cmdline").read_text(errors="surrogateescape").rstrip("\0").split("\0")
        except OSError:  # it has ended
            continue
        for i, word in enumerate(words[1:], 1):
            if word == "serve" and Path(words[i - 1]).name == "lightwell":
                return words[i + 1 :]
    return []


def why_not_ready(host: str, port: int) -> str | None:
    """Return the problem of the server at this address, or None if it is ready."""
    connection = http.client.HTTPConnection(_ANY_ADDRESS.get(host, host), port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return f"{host}:{port} does not answer: {error}"
    finally:
        connection.close()
    return None if answer.status == http.client.OK else f"{host}:{port} is not ready: {text}"
