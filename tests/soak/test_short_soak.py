"""A soak of some seconds with one kill: every request accounted for, every answer the quiet one, nothing held."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.processes import serve
from benchmarks.soak.__main__ import SERVE, report, soak
from benchmarks.soak.acts import pool


@pytest.mark.slow
def test_a_short_soak_with_a_kill_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with serve(SERVE, log_file=log) as server:
        result = asyncio.run(soak(server, log, pool()[::8], seconds=12, clients=12, seed=1, kill_every=60))
    is_sound = report(result, 12)
    assert is_sound, capsys.readouterr().out
    assert [fault.kind for fault in result.faults] == ["kill"]
    assert {outcome.end for outcome in result.outcomes} == {"whole", "left"}
