"""Real server processes under a kubelet that does what the rendered Deployment says (`benchmarks.kubelet`)."""

import re

import pytest

from benchmarks import kubelet

pytestmark = pytest.mark.nightly

SPEED = 10.0
"""The divisor of the kubelet's times: they are a tenth of the manifest's; the server's are its own."""


def seen(row: list[str]) -> dict[str, int]:
    """Return what clients saw in one row of the table, and how often."""
    return {what: int(count) for count, what in re.findall(r"(\d+) ([^,]+)", row[3])}


def test_a_pod_starts_survives_its_worker_is_restarted_when_it_hangs_and_is_drained() -> None:
    started, lost, hung, drained = kubelet.play(None, is_rollout=False, speed=SPEED)
    assert set(seen(started)) == {"answered"}
    assert lost[2] == "0", "the server replaces a worker by itself: the container is not restarted"
    assert seen(lost).keys() <= {"answered", "503 worker_lost", "503 not_ready", "a stream that ended with worker_lost"}
    assert seen(lost)["answered"]
    assert hung[2] == "1"
    assert drained[0] == "deleted, exit status 0"
    assert seen(drained).keys() <= {"answered"}


def test_a_rollout_costs_no_client_its_answer() -> None:
    for row in kubelet.play(None, is_rollout=True, speed=SPEED):
        assert row[0].endswith("exit status 0")
        assert set(seen(row)) == {"answered"}
