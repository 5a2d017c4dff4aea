"""A soak of some seconds with one kill: every request is accounted for, every answer is the same as without load, and
all resources are released.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import SERVE, report, soak
from benchmarks.soak.acts import pool
from tests.support.processes import Server, serve
from tests.support.wire import scrape

pytestmark = pytest.mark.nightly


def test_a_short_soak_with_a_kill_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with serve(SERVE, log_file=log) as server:
        result = asyncio.run(soak(server, log, pool()[::8], seconds=12, clients=12, seed=1, kill_every=60))
    is_sound = report(result, 12)
    assert is_sound, capsys.readouterr().out
    assert [fault.kind for fault in result.faults] == ["kill"]
    assert {outcome.end for outcome in result.outcomes} == {"whole", "left"}


def test_a_soak_whose_server_ends_says_so_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(server: Server) -> None:
        soaking = asyncio.create_task(soak(server, log, pool()[:1], seconds=600, clients=2, seed=1, kill_every=600))
        while not (await scrape(server.host, server.port))["lightwell_requests_submitted_total"] > 1:
            await asyncio.sleep(0.02)
        os.kill(server.pid, signal.SIGKILL)
        await soaking

    with serve(SERVE, log_file=log) as server, pytest.raises(RuntimeError, match="the server ended in the midst"):
        asyncio.run(run(server))
