"""schemathesis against the default model over HTTP: the OpenAPI document says what the server does; nothing is a 500.

All its checks but positive_data_acceptance: a schema can't know the context's length, nor which tokens there are. The
number of cases is bounded here; the long run is `SCHEMATHESIS_SECONDS=1800 pytest tests/e2e/test_openapi_over_http.py`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.processes import serve
from server.keys import key_entry

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "120"))
KEY = "a-key-for-schemathesis"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
"""With the variables of pytest-xdist, schemathesis is four times slower."""
CONFIG = """
[parameters]
"path.model_id" = "fables"
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""504 is the right answer to a `timeout` of 5e-324 seconds."""


MIN_CASES = 300
"""Of the bounded run: a tenth of what it reaches where it has two cores for itself."""


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    keys = tmp_path / "keys.toml"
    keys.write_text(key_entry("schemathesis", KEY, is_admin=True))  # or the document would lack the operator's routes
    bearer = f"Bearer {KEY}"
    with serve(["--served-model-name", "fables", "--api-key-file", str(keys)]) as server:
        paths = httpx.get(f"{server.url}/openapi.json", headers={"authorization": bearer}).json()["paths"]
        done = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"), "--config-file", tmp_path / "schemathesis.toml",
                "run", f"{server.url}/openapi.json", "--header", f"Authorization: {bearer}",
                "--phases", "examples,coverage,fuzzing,stateful", "--exclude-checks", "positive_data_acceptance",
                "--max-time", str(SECONDS), "--request-timeout", "60", "--suppress-health-check", "all",
            ],
            cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "/admin/keys/reload" in paths
    num_operations = sum(map(len, paths.values()))
    assert f"Selected: {num_operations}/{num_operations}\n  Tested: {num_operations}\n" in done.stdout, done.stdout[
        -2000:
    ]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None, done.stdout
    assert int(generated[1]) >= MIN_CASES
