"""The worker's loop around a real engine, driven over a real socket."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lightwell.server.engine.execution import step_cancellation
from lightwell.server.engine.messages.request import BACKGROUND
from lightwell.server.ipc import messages
from lightwell.server.ipc.frames import FrameDecoder, frame_parts
from lightwell.server.ipc.link import WorkerLink
from lightwell.server.worker.loop import run_engine
from tests import tiny
from tests.server.engine.driving import build, generate, load, request
from tests.server.running import PATIENCE
from tests.support.panics import PanicException


class Gate:
    """Holds a network's next pass at its beginning until the test releases it."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()

    def wait(self) -> None:
        self.is_reached.set()
        assert self.is_open.wait(PATIENCE)


class Api:
    """The other end of the socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder()
        self.refusals: list[messages.RequestRefused] = []

    def say(self, *said: messages.ToWorker) -> None:
        """Send all messages at once."""
        self._socket.sendall(b"".join(part for each in said for part in frame_parts(*messages.encode(each))))

    def ends(self, count: int) -> dict[int, str]:
        """Wait until `count` requests have ended, and return their finish reasons by uid."""
        found: dict[int, str] = {}
        while len(found) < count:
            for step in self._steps():
                found |= {out.uid: out.finish_reason for out in step.outputs if out.finish_reason is not None}
                self.stats = step.stats
                self.refusals += step.refusals
        return found

    def _steps(self) -> list[messages.StepMessage]:
        received = self._socket.recv_into(self._decoder.space())
        assert received, "the worker left"
        frames = self._decoder.advance(received)
        decoded = [messages.decode_from_worker(frame.header, frame.buffers) for frame in frames]
        return [message for message in decoded if isinstance(message, messages.StepMessage)]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def api(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(step_cancellation, "ASK_INTERVAL", 0.0)
    model = load(tiny.make_variant("llama-gqa", tmp_path))
    forward = model.forward

    def waits(*arguments: Any) -> Any:
        gate.wait()
        return forward(*arguments)

    monkeypatch.setattr(model, "forward", waits)
    mine, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    link, engine = WorkerLink(mine), build(model)

    def run() -> None:
        with pytest.raises(ConnectionError):
            run_engine(engine, link)

    worker = threading.Thread(target=run)
    worker.start()
    yield Api(theirs)
    theirs.close()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    link.close()


def test_a_request_that_cannot_be_decoded_is_refused_and_costs_no_other_its_worker(api: Api, gate: Gate) -> None:
    gate.is_open.set()
    task = generate(2, ignore_eos=True)
    wrong = structs.replace(task, sampling=structs.replace(task.sampling, temperature="hot"))
    api.say(request(1, [5], wrong), request(2, [5], task))
    assert api.ends(1) == {2: "length"}
    assert [refusal.uid for refusal in api.refusals] == [1]
    assert "temperature" in api.refusals[0].message or "float" in api.refusals[0].message


def test_a_panic_as_a_request_begins_fails_that_request(api: Api, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*unused: Any) -> None:
        raise PanicException("a library in Rust panicked")

    gate.is_open.set()
    with monkeypatch.context() as planted:
        planted.setattr("lightwell.server.engine.active_request.RequestCaptures.of", panic)
        api.say(request(1, [5] * 6, generate(4)))
        assert api.ends(1) == {1: "error"}
    api.say(request(2, [6, 7, 8], generate(2, ignore_eos=True)))
    assert api.ends(1) == {2: "length"}
    assert (api.stats.num_requests_running, api.stats.kv_cache_usage_ratio) == (0, 0)


def test_an_abort_overtakes_nothing_but_the_step(api: Api, gate: Gate) -> None:
    """Check that a request that arrives and is aborted within a stopped step reaches the engine in that order, and
    therefore ends.
    """
    api.say(request(1, [5] * 60, generate(4)))
    assert gate.is_reached.wait(PATIENCE)
    stays = request(3, [6, 7, 8], generate(2, ignore_eos=True), deadline=time.monotonic() + PATIENCE)
    api.say(request(2, [5] * 60, generate(4)), messages.Abort(2), stays, messages.Abort(1))
    gate.is_open.set()
    assert api.ends(3) == {1: "abort", 2: "abort", 3: "length"}
    assert api.stats.steps_abandoned_total == 1
    assert (api.stats.num_requests_running, api.stats.kv_cache_usage_ratio) == (0, 0)


def test_a_request_that_arrives_during_a_step_of_batch_rows_stops_it(api: Api, gate: Gate) -> None:
    row, another = (structs.replace(request(uid, [uid] * 60, generate(1)), priority=BACKGROUND) for uid in (1, 2))
    api.say(row)
    assert gate.is_reached.wait(PATIENCE)
    api.say(another, request(3, [6, 7, 8], generate(2, ignore_eos=True)))
    gate.is_open.set()
    assert list(api.ends(3)) == [3, 1, 2]
    assert api.stats.steps_abandoned_total == 1
