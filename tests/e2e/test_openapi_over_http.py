"""schemathesis against the default model over HTTP: the OpenAPI document says what the server does; nothing is a 500.

All its checks but positive_data_acceptance: a schema can't know the context's length, nor which tokens there are. What
follows from the document is tried to its end, however busy the machine; then random cases for a time that is bounded
here; the long run is `SCHEMATHESIS_SECONDS=1800 pytest tests/e2e/test_openapi_over_http.py`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.processes import Server, serve
from server.keys import key_entry

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "20"))
KEY = "a-key-for-schemathesis"
CONFIG = """
[parameters]
"path.model_id" = "fables"
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""504 is the right answer to a `timeout` of 5e-324 seconds."""


MIN_CASES = 300
"""Of those that follow from the document; five of the operations alone had 321."""


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    keys = tmp_path / "keys.toml"
    keys.write_text(key_entry("schemathesis", KEY, is_admin=True))  # or the document would lack the operator's routes
    with serve(["--served-model-name", "fables", "--api-key-file", str(keys)]) as server:
        document = httpx.get(f"{server.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"}).json()
        from_document = schemathesis(server, tmp_path, "--phases", "examples,coverage")
        schemathesis(server, tmp_path, "--phases", "fuzzing,stateful", "--max-time", str(SECONDS))
    assert "/admin/keys/reload" in document["paths"]
    num_operations = sum(map(len, document["paths"].values()))
    tested = f"Selected: {num_operations}/{num_operations}\n  Tested: {num_operations}\n"
    assert tested in from_document, from_document[-2000:]
    generated = re.search(r"(\d+) generated", from_document)
    assert generated is not None, from_document
    assert int(generated[1]) >= MIN_CASES


def schemathesis(server: Server, folder: Path, *options: str) -> str:
    """What it printed, having found nothing."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "--config-file", folder / "schemathesis.toml",
            "run", f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}", *options,
            "--exclude-checks", "positive_data_acceptance", "--request-timeout", "60", "--suppress-health-check", "all",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout
