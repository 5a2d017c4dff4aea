"""Checks that secrets stay between client and server: keys and prompts are in no log line, for every request and every
error.
"""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import LOAD_PATIENCE, RunningServer, running_server, stream_lines, wait_for
from tests.support.breakable_server import RAISES
from tests.support.processes import descendants, worker_pid

KEY = "lw-zanzibar-key-0451"
WORD = "zanzibarprompt"
"""A word that is in each prompt, each unknown field, each broken body."""
BREAKING = f"{WORD} in London"
"""A prompt that ends in the token on which the network raises."""
RAISED = "ArithmeticError: a token that the network cannot bear"
MESSAGES = [{"role": "user", "content": WORD}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": WORD, "max_tokens": 3, "stop": [WORD], "user": WORD, "attention": {"layers": 0}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/decisions": {"input": WORD, "questions": [{"type": "predicate", "name": WORD, "instructions": WORD}]},
    "/v1/systemone": {"state": {WORD: WORD}, "questions": {WORD: {"type": "noul", "instructions": WORD}}},
    "/v1/responses": {"input": WORD, "max_output_tokens": 3, "metadata": {WORD: WORD}, "user": WORD},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "metadata": {"user_id": WORD}},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/attention": {"input": WORD, "layers": 0},
    "/v1/embeddings": {"input": WORD},
    "/v1/trace": {"input": WORD, "points": ["hook_embed"]},
    "/v1/next": {"input": WORD},
    "/tokenize": {"prompt": WORD},
}


def raw(url: str, data: bytes) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1 << 16)


def ask_everything(url: str) -> None:
    """Send every route good and bad requests that carry the word, with the key, without it, with another."""
    headers = {"authorization": f"Bearer {KEY}", "x-note": WORD}
    json = {"content-type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        for path, body in GOOD.items():
            assert client.post(path, json=body).status_code == 200, path
        paths = client.get("/openapi.json").json()["paths"]
        for path in [path for path, methods in paths.items() if "post" in methods]:
            for wrong in ({WORD: WORD}, {"input": {WORD: WORD}, "prompt": {WORD: 1}}, {"model": WORD, "input": WORD}):
                assert client.post(path, json=wrong).is_client_error
            for content in (f'{{"prompt": "{WORD}'.encode(), WORD.encode() + b"\xff", WORD.encode()):
                assert client.post(path, content=content, headers=json).status_code == 400
            foreign = {"content-type": WORD, "origin": "http://a.example"}
            assert client.post(path, content=WORD, headers=foreign).status_code == 415
            assert client.post(path, json={}, headers={"authorization": f"Bearer {WORD}"}).status_code == 401
            in_other_header = {"authorization": "", "x-api-key": WORD}
            assert client.post(path, json={}, headers=in_other_header).status_code == 401
            assert client.post(path, json={WORD: WORD}, headers={**in_other_header, "x-api-key": KEY}).is_client_error
        for path in [path for path, methods in paths.items() if "get" in methods]:
            client.get(path, params={"q": WORD})
        body = {"prompt": WORD, "max_tokens": 400, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as lines:
            next(lines.iter_lines())  # and leave
    line, key = "POST /v1/completions HTTP/1.1\r\nhost: x\r\n", f"authorization: Bearer {KEY}\r\n"
    cut = f"content-type: application/json\r\ncontent-length: 999\r\n\r\n{WORD}"
    for text in (
        f"{WORD} {KEY}\r\n\r\n",
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\nx: {WORD}\0\r\n\r\n",
        f"{line}{key}x: {WORD}\0\r\n\r\n",
        f"{line}{key}{cut}",
    ):
        raw(url, text.encode())


def break_everything(server: RunningServer) -> None:
    """Cause steps that raise, a dump of the state while requests run, and kill a worker with requests in flight."""
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        assert client.post("/tokenize", json={"prompt": BREAKING}).json()["tokens"][-1] == RAISES
        for path, field in (("/v1/completions", "prompt"), ("/v1/attention", "input"), ("/v1/embeddings", "input")):
            assert client.post(path, json={field: BREAKING}).status_code == 500, path
        # It was the steps that raised. A thread writes the worker's lines, and the worker is killed below.
        wait_for(lambda: server.output.count(RAISED) >= 3, "the errors of the steps are in the log")
        body = {"prompt": WORD, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(stream_lines(answer))
            server.signal(signal.SIGUSR1)
            wait_for(lambda: "the state of the server" in server.output, "the state is in the log")
        worker = worker_pid(server.process.pid)  # looked up first: the stream lasts about a second
        assert worker is not None
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = stream_lines(answer)
            next(lines)
            os.kill(worker, signal.SIGKILL)
            assert "error" in list(lines)
        wait_for(lambda: server.status("/health/ready") == 200, "another worker is ready", LOAD_PATIENCE)
        assert client.post("/v1/completions", json={"prompt": WORD, "max_tokens": 3}).status_code == 200


@pytest.mark.parametrize("style", ["text", pytest.param("json", marks=pytest.mark.nightly)])
def test_no_key_and_no_prompt_is_logged_even_at_debug_whatever_fails(style: str) -> None:
    with running_server(
        "--log-level", "debug", "--log-format", style, module="tests.support.breakable_server", LIGHTWELL_API_KEY=KEY
    ) as server:
        server.wait_ready()
        ask_everything(server.url)
        break_everything(server)
        for pid in set(descendants(server.process.pid)) - {server.process.pid}:  # workers do not receive the keys
            for file in ("environ", "cmdline"):
                assert KEY.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
        written = server.output
    assert written.count("/v1/completions") > 5
    assert "worker 0 ended" in written
    assert KEY not in written
    assert WORD not in written
