"""Limits of a worker's memory, and of captures by it (`test_real_worker.py` uses up a real worker's memory)."""

import mmap
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.admission import STEP_MEMORY, capture_limit
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.engine.memory.process_memory import _status_bytes, free_in_share, limit_memory
from lightwell.server.ipc.messages import Ready
from tests.server import fake_client
from tests.server.fake_client import FakeEngine
from tests.server.played_worker import INFO, PlayedWorker, until
from tests.server.serving import site


async def test_captures_are_limited_to_half_of_the_workers_memory_that_steps_leave() -> None:
    settings = Settings(max_capture_bytes=1 << 40)
    client = EngineClient(settings, num_workers=2)
    await client.start()
    played = [PlayedWorker(client, i) for i in range(2)]
    for each, room in zip(played, (STEP_MEMORY + (64 << 20), STEP_MEMORY + (40 << 20)), strict=True):
        each.say(Ready(replace(INFO, memory_room=room)))
    await until(lambda: all(worker.is_ready for worker in client.workers))
    assert client.admission.capture.limit == 20 << 20, "of the worker that has least"
    for each in played:
        each.link.close()
    await client.stop()
    client.socket.remove()
    assert capture_limit(1000, STEP_MEMORY + (64 << 20)) == 1000
    assert capture_limit(1 << 40, STEP_MEMORY) == STEP_MEMORY // 16, "or not even an embedding would be accepted"
    assert capture_limit(1 << 40, None) == 1 << 40


async def test_a_look_that_is_larger_than_the_workers_memory_allows_is_refused_with_the_limit(tmp_path: Path) -> None:
    room = 1 << 10
    engine = FakeEngine(engine_info=replace(fake_client.INFO, memory_room=room))
    async with site(tmp_path, engine) as at:
        limit = (await at.http.get("/v1/capabilities")).json()["limits"]["max_capture_bytes"]
        assert limit == room // 16
        error = await at.error("/v1/trace", {"input": [list(range(40))], "points": ["attn.hook_pattern"]}, 413)
    assert f"at most {limit} are accepted (--max-capture-bytes, --worker-memory)" in error["message"]
    assert not engine.submitted


def test_a_limit_that_is_used_up_by_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check against an old failure: a worker without room reported negative room, and failed at its first thread."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ValueError, match=r"^--worker-memory 1 \(bytes\) is not enough: \d+ bytes are needed"):
        limit_memory(1)
    monkeypatch.setattr("lightwell.server.engine.memory.process_memory.free_host_memory", lambda: 0)
    with pytest.raises(ValueError, match=r"^the model and its KV cache take \d+ MiB.*set a smaller --kv-cache-memory$"):
        limit_memory(None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


BEYOND_THE_LIMIT = """
import mmap
from lightwell.server.engine.memory.process_memory import data_bytes, limit_memory, reserve

room = limit_memory(data_bytes() + (64 << 20))
held = mmap.mmap(-1, room - (1 << 20), flags=mmap.MAP_PRIVATE)
def take():
    try:
        return mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE)
    except OSError:
        return None
print(take() is None, end=" ")
with reserve():
    kept = take()
print(kept is not None, take() is None)
"""


def test_who_is_tried_again_may_take_what_was_kept_back() -> None:
    done = subprocess.run([sys.executable, "-c", BEYOND_THE_LIMIT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def test_a_worker_on_a_card_is_not_limited(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert limit_memory(1 << 40, device="cuda:0") is None
    assert "--worker-memory does not bound a worker on a GPU" in caplog.text
    assert limit_memory(None, device="cuda:1") is None
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_of_its_share_a_worker_may_take_what_it_has_not_touched_and_no_more_than_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = 1 << 40  # fixed: the real free memory changes meanwhile
    monkeypatch.setattr("lightwell.server.engine.memory.process_memory.free_host_memory", lambda: free)
    assert free_in_share(None) == free
    assert free_in_share(1 << 60) == free
    assert free_in_share(1 << 10) == 0, "more is taken already"
    share = _status_bytes("RssAnon") + (256 << 20)
    left = free_in_share(share)
    assert left is not None
    assert left < share
    # A bytearray might be of memory that the process has freed and still holds.
    held = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:: 1 << 12] = bytes(len(held) >> 12)
    less = free_in_share(share)
    assert less == pytest.approx(left - len(held), abs=8 << 20)
