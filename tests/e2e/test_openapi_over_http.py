"""schemathesis against the default model over HTTP: the OpenAPI document says what the server does; nothing is a 500.

All its checks but positive_data_acceptance: a schema can't know the context's length, nor which tokens there are. The
number of cases is bounded here; the long run is `SCHEMATHESIS_SECONDS=1800 pytest tests/e2e/test_openapi_over_http.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import serve

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "60"))
KEY = "a-key-for-schemathesis"
CONFIG = """
[parameters]
"path.model_id" = "fables"
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
"""504 is the right answer to a `timeout` of 5e-324 seconds."""


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with serve(["--served-model-name", "fables", "--api-key", KEY]) as server:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"), "--config-file", tmp_path / "schemathesis.toml",
                "run", f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
                "--phases", "examples,coverage,fuzzing,stateful", "--exclude-checks", "positive_data_acceptance",
                "--max-time", str(SECONDS), "--request-timeout", "60", "--suppress-health-check", "all",
            ],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Test cases:" in done.stdout
