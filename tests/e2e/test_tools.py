"""Other projects' programs, unmodified, against the running server and the files of deploy/."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ALL
from tests.support.chromium import find_chromium
from tests.support.processes import Server

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS = "Debian's package prometheus"

Program = Callable[[str, str], str]


@pytest.mark.tool
def test_promtool_finds_nothing_wrong_with_the_metrics(program: Program, server: Server) -> None:
    promtool = program("promtool", PROMETHEUS)
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60):
        pass
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        metrics = answer.read()
    done = subprocess.run([promtool, "check", "metrics"], input=metrics, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.tool
def test_prometheus_accepts_the_scrape_configuration(program: Program) -> None:
    promtool = program("promtool", PROMETHEUS)
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_docs_page_draws_every_route_in_a_browser_without_network(program: Program, server: Server) -> None:
    chromium = find_chromium() or program("chromium", "Debian's package chromium-headless-shell")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"{server.url}/docs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60) as answer:
        paths = json.load(answer)["paths"]
    assert not [path for path in paths if f'data-path="{path}"' not in done.stdout]


@pytest.mark.tool
def test_the_image_builds_and_serves_the_default_model() -> None:
    build_image = os.environ.get("BUILD_IMAGE")
    if not ALL:
        pytest.skip("the image is built by `make test-nightly BUILD_IMAGE=SCRIPT`")
    if not build_image:
        pytest.skip("no BUILD_IMAGE: the script that builds the image (SCRIPT TAG) and runs in it (SCRIPT TAG -- CMD)")
    build = [build_image, "lightwell-test"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    check = ROOT / "tests" / "tools" / "serve_once.py"
    command = [build_image, "lightwell-test", "--", "python", "-c", check.read_text()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["model"], answer["status"], answer["health"], answer["user"]) == ("smollm2", 0, 0, "lightwell")
    assert answer["text"]
    assert (answer["capabilities"], answer["written"], answer["left_in_tmp"]) == ("0", [], [])
