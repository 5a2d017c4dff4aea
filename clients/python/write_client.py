"""Write the synchronous client from the asynchronous one, so that a method is written once.

Run it after a change of the asynchronous client: `python clients/python/write_client.py`. A test fails if it was not.
Needs ruff. The two files differ only in the words below.
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "lightwell_client"
FILES = {"_async_client.py": "_client.py", "_async_connection.py": "_connection.py"}
"""The file that each file is written to."""

TEXTS = {
    """The asynchronous client's connection, for asyncio: sends the pure calls of _calls, retries, and reads answers.

clients/python/write_client.py writes the synchronous client's connection from this file.
""": """The synchronous client's connection: sends the pure calls of _calls, retries, and reads answers.

clients/python/write_client.py writes this file from _async_connection.py: change that one.
""",
    """The asynchronous client, for asyncio: a method for each route.

A method is written here only: clients/python/write_client.py writes the synchronous client from this file.
""": """The synchronous client: a method for each route.

clients/python/write_client.py writes this file from _async_client.py: change that one.
""",
    """Leaving the `async with` block or `close()` ends the request
    on the server too, however far it has come.""": """Leaving the `with` block, `close()`, or letting go of the
    stream ends the request on the server too, however far it has come.""",
    """`Client` for asyncio: the same arguments (`http_client` is an httpx.AsyncClient), the same methods, awaited.

    `stream` and `chat_stream` are not awaited: `async for chunk in client.stream(...)`.
""": """Sends requests to a Lightwell server, or for text and embeddings to any OpenAI-style server. It is safe to share
    between threads.

    Args:
        base_url: the server's address, with or without /v1.
        api_key: sent as a bearer token.
        model: the model to name in each request; None leaves it to the server.
        timeout: seconds of silence before TimedOut (not the length of the whole answer), or an httpx.Timeout.
        max_retries: retries after a failed connection, 429 or 503. Retry-After is honoured. A request is never
            retried after its answer has begun. An earlier retry is safe, because the server stores nothing.
        http_client: an httpx.Client to send with (proxies, certificates, transports); closing it stays with you.

    Raises:
        ValueError: base_url is no http(s) address, max_retries is negative.
""",
}
WORDS = {
    r"AsyncGenerator\[T, None\]": "Generator[T, None, None]",
    r"\bAsync(Client|Connection|Stream|Generator|Iterator)\b": r"\1",
    r"client\._async_connection\b": "client._connection",
    r"\basync (def|for|with) ": r"\1 ",
    r"\bawait ": "",
    r"__a(iter|next|enter|exit)__": r"__\1__",
    r"\banext\(": "next(",
    r"\basyncio\b": "time",
    r"\.a(read|close|iter_bytes)\(": r".\1(",
}


def synchronous(source: str) -> str:
    """Return the synchronous source for an asynchronous one."""
    for theirs, ours in TEXTS.items():
        source = source.replace(theirs, ours)
    for pattern, word in WORDS.items():
        source = re.sub(pattern, word, source)
    return _ruff(_ruff(source, "check", "--quiet", "--fix", "--unsafe-fixes", "--select", "I,UP028"), "format")


def written() -> dict[str, str]:
    """Return the source of each synchronous file, by its name.

    Raises:
        ValueError: a text that differs between the two clients is in no asynchronous file.
    """
    sources = {target: (PACKAGE / source).read_text(encoding="utf-8") for source, target in FILES.items()}
    for theirs in TEXTS:
        if not any(theirs in source for source in sources.values()):
            raise ValueError(f"{', '.join(FILES)} do not hold the text that begins {theirs[:60]!r}")
    return {target: synchronous(source) for target, source in sources.items()}


def _ruff(source: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(PACKAGE / "_client.py"), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for name, text in written().items():
        (PACKAGE / name).write_text(text, encoding="utf-8")
