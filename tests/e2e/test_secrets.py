"""What stays between client and server: keys and prompts are in no log line, whatever is asked and whatever fails."""

import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.processes import descendants, serve

KEY = "lw-zanzibar-key-0451"
WORD = "zanzibarprompt"
"""Stands in each prompt, each unknown field, each broken body."""
MESSAGES = [{"role": "user", "content": WORD}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": WORD, "max_tokens": 3, "stop": [WORD], "user": WORD, "attention": {"layers": 0}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/attention": {"input": WORD, "layers": 0},
    "/v1/embeddings": {"input": WORD},
    "/v1/trace": {"input": WORD, "points": ["hook_embed"]},
    "/v1/next": {"input": WORD},
    "/tokenize": {"prompt": WORD},
}


def raw(url: str, data: bytes) -> bytes:
    """What the server answers to bytes as they are."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1 << 16)


def ask_everything(url: str) -> None:
    """Every route with good and bad requests that carry the word, with the key, without it, with another."""
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
            assert client.post(path, content=WORD, headers={"content-type": WORD}).status_code == 415
            assert client.post(path, json={}, headers={"authorization": f"Bearer {WORD}"}).status_code == 401
        for path in [path for path, methods in paths.items() if "get" in methods]:
            client.get(path, params={"q": WORD})
        with client.stream(
            "POST", "/v1/completions", json={"prompt": WORD, "max_tokens": 400, "stream": True}
        ) as lines:
            next(lines.iter_lines())  # and leave
    raw(url, f"{WORD} {KEY}\r\n\r\n".encode())
    raw(url, f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nx: {WORD}\0\r\n\r\n".encode())
    raw(
        url,
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: 999\r\n\r\n{WORD}".encode(),
    )


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_key_and_no_prompt_is_logged_even_at_debug(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTWELL_API_KEY", KEY)
    log = tmp_path / "log"
    with serve(["--log-level", "debug", "--log-format", style], log_file=log) as server:
        ask_everything(server.url)
        for pid in set(descendants(server.pid)) - {server.pid}:  # workers are not told the keys
            for file in ("environ", "cmdline"):
                assert KEY.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
    written = log.read_text()
    assert written.count("/v1/completions") > 5
    assert KEY not in written
    assert WORD not in written
    assert "Traceback" not in written
    assert "LIGHTWELL_API_KEY" in os.environ  # it was the variable that was tried
