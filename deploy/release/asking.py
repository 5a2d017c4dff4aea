"""Starts an installed server from an empty folder, asks it over HTTP, and stops it as an operator does."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.release.versions import CheckFailed
from deploy.release.workplace import clean_environment
from tests.support.processes import LOOPBACK, Server, end, free_port, wait_until_ready

PROMPT = "Once upon a time there was a"


@dataclass(frozen=True)
class Installed(Server):
    """A server that was started from an environment, with its process."""

    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """End it with SIGTERM. Raises CheckFailed if its status is not 0."""
        self.process.terminate()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait until it has ended. Raises CheckFailed if its status is not 0."""
        if status := self.process.wait(120):
            raise CheckFailed(f"the server ended with {status} after SIGTERM")


@contextmanager
def serving(python: Path, folder: Path, *arguments: str, port: int = 0) -> Iterator[Installed]:
    """Run `lightwell serve` of an environment, in a folder, until the block ends.

    Raises CheckFailed, with the end of its log, if it does not become ready.
    """
    port = port or free_port()
    command = [str(python.with_name("lightwell")), "serve", *arguments, "--host", LOOPBACK, "--port", str(port)]
    log = folder.with_name(f"{python.parent.parent.name}-{port}.log")
    with log.open("w+b") as output:
        process = subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=output, stderr=output)
        try:
            server = Installed(LOOPBACK, port, process.pid, process)
            if reason := wait_until_ready(server, process, "/health/ready", 300):
                raise CheckFailed(f"{' '.join(command)}: {reason}\n{log.read_text(errors='replace')[-3000:]}")
            yield server
        finally:
            end(process)


def ask(server: Server, path: str, body: dict[str, Any] | bytes | None = None) -> tuple[int, Any]:
    """Send a body of JSON (without one: GET); return the status and the answer's JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def asked(server: Server, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer's JSON. Raises CheckFailed if the status is not 200."""
    status, answer = ask(server, path, body)
    if status != 200:
        raise CheckFailed(f"{path} answered {status}: {json.dumps(answer)[:500]}")
    return answer


def complete(server: Server, **fields: Any) -> Any:
    """Return the choices of a completion of PROMPT; 24 tokens at temperature 0 unless the fields say otherwise."""
    answer = asked(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields})
    return answer["choices"]


def check_attention(server: Server) -> str:
    """Return the text of a completion. Raises CheckFailed unless its attention is one row a token that sums to 1."""
    (choice,) = complete(server, max_tokens=8, attention={"layers": [5], "heads": [0, 3]})
    sums = [sum(row) for layer in choice["attention"]["attention"] for head in layer for row in head]
    if len(sums) != 2 * 8 or any(abs(each - 1) > 1e-3 for each in sums):
        raise CheckFailed(f"rows of attention sum to {sums}")
    text: str = choice["text"]
    return text
