"""Runs inside the image: serves the default model, requests one completion, ends the server with SIGTERM.

The last line printed is JSON: the model, the text, after how many seconds it was ready and had written one token, the
exit status of the server and of its health check, the user and the capabilities it ran with, whether the root is
read-only, the files written outside /tmp and /cache if it is not, and the files left in /tmp. It uses the standard
library only.
"""

import json
import os
import pwd
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 18651


def wait_until_ready(server: "subprocess.Popen[bytes]", seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/ready", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise SystemExit(f"the server in the image was not ready within {seconds} s (status {server.poll()})")


def complete(max_tokens: int) -> dict[str, str]:
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion = json.load(answer)
    return {"model": completion["model"], "text": completion["choices"][0]["text"]}


def rights(pid: int) -> str:
    """Return the effective capabilities of a process, as hexadecimal digits; 0 means none."""
    status = Path(f"/proc/{pid}/status").read_text()
    found: str = re.findall(r"CapEff:\s*0*(\w+)", status)[0]
    return found


def is_read_only() -> bool:
    return bool(os.statvfs("/").f_flag & os.ST_RDONLY)


def user_name() -> str:
    """Return the user's name, or the number of a user without a name: `docker run --user 12345`."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def written_since(begin: float, top: str) -> list[str]:
    """Return the files in a folder and its file system that changed since then, except files in /tmp and in /cache
    unless it is that folder.
    """
    device, found = os.stat(top).st_dev, []
    others = {"/tmp", "/cache"} - {top}
    for folder, folders, files in os.walk(top):
        folders[:] = [
            name for name in folders
            if os.path.join(folder, name) not in others and os.lstat(os.path.join(folder, name)).st_dev == device
        ]  # fmt: skip
        paths = (os.path.join(folder, name) for name in files)
        found += [path for path in paths if os.lstat(path).st_ctime > begin]
    return found


def main() -> None:
    begin, started = time.time(), time.perf_counter()
    server = subprocess.Popen(["lightwell", "serve", "--host", "127.0.0.1", "--port", str(PORT)])
    try:
        wait_until_ready(server, 180)
        ready = time.perf_counter()
        complete(max_tokens=1)
        answered = time.perf_counter()
        answer = complete(max_tokens=16)
        capabilities = rights(server.pid)
        health = subprocess.run(["lightwell", "health"], check=False).returncode  # as the image's health check does
        server.terminate()
        status = server.wait(60)
    finally:
        server.kill()
    print(
        json.dumps(
            {
                **answer,
                "ready_s": ready - started,
                "answered_s": answered - started,
                "status": status,
                "health": health,
                "user": user_name(),
                "capabilities": capabilities,
                "is_read_only": is_read_only(),
                "written": [] if is_read_only() else written_since(begin, "/"),
                "left_in_tmp": written_since(begin, "/tmp"),
            }
        )
    )


if __name__ == "__main__":
    main()
