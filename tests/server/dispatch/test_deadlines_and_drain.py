"""The engine's client: deadlines, drain, and workers that do not load."""

import asyncio
import time

import pytest

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.outputs import RequestOutput, Timing
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.http.errors import DeadlineExceeded, Unavailable
from lightwell.server.ipc.messages import Abort, Heartbeat, Loading
from lightwell.server.observability.access_log import RequestRecord
from tests.server.played_worker import ONE, PlayedWorker, outputs_of, until


@pytest.mark.parametrize(
    ("num_tokens", "timing", "reached"),
    [
        (0, Timing(arrival=1.0), "was still waiting for its turn"),
        (0, Timing(arrival=1.0, scheduled=2.0), "nothing was generated yet"),
        (2, Timing(arrival=1.0, scheduled=2.0, first_token=3.0), "2 tokens were generated"),
    ],
)
async def test_the_end_of_its_time_says_how_far_a_request_came(
    client: EngineClient, worker: PlayedWorker, num_tokens: int, timing: Timing, reached: str
) -> None:
    handle = await client.submit(ONE, RequestContext(deadline=time.monotonic() + 60))
    for token in range(num_tokens):
        worker.step(RequestOutput(uid=handle.uid, token_id=token))
    worker.step(RequestOutput(uid=handle.uid, finish_reason="deadline", timing=timing))
    with pytest.raises(DeadlineExceeded, match=f"within 60 s: .*{reached}"):
        await outputs_of(handle)


async def test_a_deadline_holds_although_the_worker_says_nothing(client: EngineClient, worker: PlayedWorker) -> None:
    handle = await client.submit(ONE, RequestContext(deadline=time.monotonic()))
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(anext(handle), 60)
    assert isinstance(await worker.receive(), EngineRequest)
    assert await worker.receive() == Abort(handle.uid)


async def test_an_http_request_that_has_begun_goes_on_while_the_server_drains_until_the_drain_is_over(
    client: EngineClient, worker: PlayedWorker
) -> None:
    begun = RequestContext(RequestRecord("a"))
    first = await client.submit(ONE, begun)
    client.begin_drain()
    assert (client.ready(), client.reason()) == (False, "draining")
    with pytest.raises(Unavailable):
        await client.submit(ONE, RequestContext())
    worker.step(RequestOutput(uid=first.uid, token_id=1, finish_reason="stop"))
    assert len(await outputs_of(first)) == 1
    client.check_room(request_context=begun)
    second = await client.submit(ONE, begun)
    client.fail_all(Unavailable("The server is shutting down.", code="shutting_down"))
    with pytest.raises(Unavailable, match="shutting down"):
        await outputs_of(second)
    with pytest.raises(Unavailable) as caught:
        await client.submit(ONE, begun)
    assert caught.value.code == "draining"


async def test_a_worker_that_lives_and_loads_no_further_is_to_be_killed() -> None:
    client = EngineClient(Settings(load_timeout=0.3))
    killed: list[int] = []
    client.on_hung = killed.append
    await client.start()
    worker = PlayedWorker(client)

    def beats() -> bool:
        worker.say(Loading(1, 2))
        worker.say(Heartbeat())
        return bool(killed)

    await until(beats)
    assert killed == [0]
    assert (client.ready(), client.live) == (False, True)
    assert "got no further in loading the model" in client.reason()
    with pytest.raises(Unavailable):
        await client.submit(ONE, RequestContext())
    worker.link.close()
    await client.stop()
    client.socket.remove()


async def test_a_load_that_reports_progress_goes_on_however_little_of_the_weights_it_has_read() -> None:
    client = EngineClient(Settings(load_timeout=600))
    await client.start()
    worker = PlayedWorker(client)
    worker.say(Loading(1, 2))
    (state,) = client.workers
    await until(lambda: state.progress == (1, 2))
    state.stalled_for = 599.0
    worker.say(Heartbeat(is_idle=False))
    await until(lambda: state.stalled_for < 10)
    worker.link.close()
    await client.stop()
    client.socket.remove()
