"""Runs schemathesis against the default model over HTTP: the server behaves as the OpenAPI document describes, and
never answers with 500.

All its checks but positive_data_acceptance run: a schema can't express the context's length and the set of tokens.
The variable SCHEMATHESIS_SECONDS bounds each kind of random requests. These tests are nightly; `make test` sends a few
examples to each operation in process (tests/server/dialects/test_openapi.py).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lightwell.server.config.auth.keys import key_entry
from tests.support.processes import Server, serve

pytestmark = pytest.mark.nightly  # tests/server/dialects/test_openapi.py has a short run in process

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "20"))
KEY = "a-key-for-schemathesis"
HEADERS = {"authorization": f"Bearer {KEY}"}
MAX_MODEL_LEN = 64
"""The model's context length in tokens. It is short, because a body without `max_tokens` gets the largest number of
tokens that fits, which would take most of the time.
"""
CONFIG = """
[parameters]
"path.model_id" = "fables"
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "431", "5xx"]
[[operations]]
include-path = "/"
checks.unsupported_method.enabled = false
"""
"""schemathesis's configuration. It adds accepted statuses to schemathesis's own list: 504 answers a `timeout` of 5e-324
seconds, 413 too many messages of several blocks each, and 431 a query that is larger than the limit of a request's
head. `GET /` is the page, which is no part of the API.
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(key_entry("schemathesis", KEY, is_admin=True))  # or the document would lack the operator's routes
    arguments = ["--served-model-name", "fables", "--max-model-len", str(MAX_MODEL_LEN), "--api-key-file", str(keys)]
    with serve(arguments) as running:
        yield running


def schemathesis(server: Server, folder: Path, *options: str) -> str:
    """Run schemathesis in `folder` and return its output. Fails if it found an error."""
    (folder / "schemathesis.toml").write_text(CONFIG)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "--config-file", folder / "schemathesis.toml",
            "run", f"{server.url}/openapi.json", "--header", f"Authorization: {HEADERS['authorization']}",
            "--exclude-checks", "positive_data_acceptance", "--request-timeout", "60",
            "--suppress-health-check", "all", *options,
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = "\n".join(line[:500] for line in done.stdout.splitlines())  # a drawn body may have megabytes
    assert done.returncode == 0, told[-8000:] + done.stderr[-2000:]
    return done.stdout


def num_cases(report: str) -> int:
    generated = re.search(r"(\d+) generated", report)
    assert generated is not None, report
    return int(generated[1])


def test_what_follows_from_the_document_to_its_end(server: Server, tmp_path: Path) -> None:
    """Run by itself, without a time limit, so that every operation is reached on every machine."""
    paths = httpx.get(f"{server.url}/openapi.json", headers=HEADERS, timeout=60).json()["paths"]
    assert "/admin/keys/reload" in paths
    num_operations = sum(map(len, paths.values()))
    report = schemathesis(server, tmp_path, "--phases", "examples,coverage")
    assert f"Selected: {num_operations}/{num_operations}\n  Tested: {num_operations}\n" in report, report[-2000:]
    assert num_cases(report) > 1000


@pytest.mark.parametrize("phase", ["fuzzing", "stateful"])
def test_what_is_drawn_at_random(phase: str, server: Server, tmp_path: Path) -> None:
    report = schemathesis(server, tmp_path, "--phases", phase, "--max-time", str(SECONDS))
    assert num_cases(report) > 2 * SECONDS
