"""Home, Chat and Journey in Debian's Firefox."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tests.support.processes import Server


@pytest.mark.nightly
def test_home_chat_and_journey_work_in_firefox(server: Server) -> None:
    package = ROOT / ".tools" / "puppeteer" / "lib" / "node_modules" / "puppeteer-core"
    node, firefox = shutil.which("node"), shutil.which("firefox-esr")
    if node is None or firefox is None or not package.exists():
        pytest.skip("no Firefox here: tests/tools/install.sh installs it, and puppeteer-core, which needs npm")
    command = [node, str(Path(__file__).with_name("firefox.mjs")), str(package), firefox, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert told["home"]["bars"] == 5
    assert told["home"]["words"].startswith("The")
    assert told["chat"]["answer"] == told["chat"]["kept"]
    assert told["journey"]["moves"]
    assert told["journey"]["told"] == "2. The text becomes tokens"
    assert told["journey"]["stops"] >= 12
