"""A Hugging Face hub with one model of one revision, which answers holders of one token only."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

REPOSITORY, REVISION, COMMIT = "someone/tales", "v1", "1" * 40


class Hub(ThreadingHTTPServer):
    """The hub; `paths` has the paths of the requests that were answered with 200."""

    def __init__(self, folder: Path, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".py"}
        self.token = token
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        body, headers = self._found()
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            body, headers = None, {"X-Error-Code": "GatedRepo"}
        self.send_response(200 if body is not None else 403 if headers else 404)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body is not None:
            self.server.paths.append(self.path)
            if self.command == "GET":
                self.wfile.write(body)

    do_HEAD = do_GET

    def _found(self) -> tuple[bytes | None, dict[str, str]]:
        if self.path.startswith(f"/api/models/{REPOSITORY}/revision/{REVISION}"):
            siblings = [{"rfilename": name} for name in self.server.files]
            told = {"_id": "1", "id": REPOSITORY, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            return json.dumps(told | {"downloads": 0, "likes": 0}).encode(), {"Content-Type": "application/json"}
        if self.path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.server.files.items()
            ]
            return json.dumps(tree).encode(), {"Content-Type": "application/json"}
        prefix = f"/{REPOSITORY}/resolve/{COMMIT}/"
        data = self.server.files.get(self.path.removeprefix(prefix)) if self.path.startswith(prefix) else None
        if data is None:
            return None, {}
        return data, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}

    def log_message(self, format: str, *args: Any) -> None:
        """Drop the message, which would go to stderr."""


@contextmanager
def running_hub(folder: Path, token: str) -> Iterator[Hub]:
    """Run a hub with the files of a folder as its model."""
    with Hub(folder, token) as hub:
        thread = Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
