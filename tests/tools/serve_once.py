"""Runs inside the image: serves the default model, asks for one completion, ends the server with SIGTERM.

The last line printed is JSON: the model, the text, the server's exit status, the user it ran as. Standard library only.
"""

import json
import os
import pwd
import subprocess
import time
import urllib.error
import urllib.request

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


def complete() -> dict[str, str]:
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion = json.load(answer)
    return {"model": completion["model"], "text": completion["choices"][0]["text"]}


def main() -> None:
    environment = {**os.environ, "LIGHTWELL_PORT": str(PORT), "LIGHTWELL_HOST": "127.0.0.1"}
    server = subprocess.Popen(["lightwell", "serve"], env=environment)
    try:
        wait_until_ready(server, 180)
        answer = complete()
        server.terminate()
        status = server.wait(60)
    finally:
        server.kill()
    print(json.dumps({**answer, "status": status, "user": pwd.getpwuid(os.getuid()).pw_name}))


if __name__ == "__main__":
    main()
