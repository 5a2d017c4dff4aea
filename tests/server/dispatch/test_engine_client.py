"""The engine client against a worker played in the same process over the real socket."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.outputs import (
    Array,
    EngineStats,
    FinishReason,
    PromptLogprobs,
    RequestOutput,
    TokenLogprobs,
)
from lightwell.server.engine.messages.request import (
    EmbedTask,
    EngineRequest,
    Intervention,
)
from lightwell.server.http.errors import ApiError, BadRequest, EngineError, Unavailable, WorkerLost
from lightwell.server.ipc.messages import Abort, RequestRefused
from lightwell.server.observability.access_log import RequestRecord
from lightwell.server.observability.metrics import FAILURES
from tests.server.played_worker import INFO, ONE, PlayedWorker, generate, outputs_of, until
from tests.support.panics import PanicException


async def test_the_worker_gets_the_very_request(client: EngineClient, worker: PlayedWorker) -> None:
    values = Array("float32", (1 << 18,), bytes(range(256)) * (1 << 12))
    change = Intervention(stack="decoder", layer=0, point="attn.hook_z", op="set", array=values)
    record = RequestRecord("a")
    record.key = "search-team"
    context = RequestContext(record, deadline=time.monotonic() + 60, cache_salt="a salt", priority=-2)
    task = EmbedTask(layer=0, pooling="none", dimensions=3)
    handle = await client.submit(EngineRequest(prompt_token_ids=(1, 2, 3), task=task, interventions=(change,)), context)
    request = await worker.receive()
    assert isinstance(request, EngineRequest)
    assert (request.prompt_token_ids, request.task, request.interventions) == ((1, 2, 3), task, (change,))
    assert request.deadline is not None
    assert (request.cache_salt, request.client, request.priority) == ("a salt", "search-team", -2)
    handle.close()


async def test_the_reader_gets_the_very_outputs(client: EngineClient, worker: PlayedWorker) -> None:
    handle = await client.submit(ONE, RequestContext())
    logprobs = TokenLogprobs.of(token_id=4, logprob=-0.5, rank=1, top=((4, -0.5), (9, float("-inf"))))
    array = Array("float16", (2, 3), bytes(range(12)))
    first = RequestOutput(
        uid=handle.uid, token_id=4, logprobs=logprobs, prompt_logprobs=PromptLogprobs.of((None, logprobs))
    )
    last = RequestOutput(uid=handle.uid, token_id=5, tensors={"attention": array}, finish_reason="length")
    worker.step(first)
    worker.step(last)
    got = await outputs_of(handle)
    assert tuple(got[0].prompt_logprobs or ()) == (None, logprobs)
    assert replace(got[0], prompt_logprobs=None) == replace(first, prompt_logprobs=None)
    tensor = got[1].tensors["attention"]
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == ("float16", (2, 3), bytes(range(12)))
    assert replace(got[1], tensors={}) == replace(last, tensors={})
    assert client.num_inflight == 0


async def test_tokens_that_come_alone_are_taken_at_once_while_the_reader_waits(
    client: EngineClient, worker: PlayedWorker
) -> None:
    handle = await client.submit(EngineRequest(prompt_token_ids=(1, 2), task=generate(9)), RequestContext())
    taken: list[tuple[int, TokenLogprobs | None]] = []

    def take(token_id: int, output: RequestOutput | None) -> bool:
        is_wanted = token_id < 100
        if is_wanted:
            taken.append((token_id, output and output.logprobs))
        return is_wanted

    worker.step(RequestOutput(uid=handle.uid, token_id=1))  # no reader waits yet
    await until(lambda: handle.num_generated_tokens == 1)
    handle.on_token = take
    reading = asyncio.create_task(outputs_of(handle))
    array = Array("float32", (1,), bytes(4))
    worker.step(RequestOutput(uid=handle.uid, token_id=2, tensors={"attention": array}))  # comes with more
    await until(lambda: handle.num_generated_tokens == 2)
    scored = TokenLogprobs.of(4, -0.5, 1)
    for token_id, logprobs in ((3, None), (4, scored), (100, None)):
        worker.step(RequestOutput(uid=handle.uid, token_id=token_id, logprobs=logprobs))
    await until(lambda: handle.num_generated_tokens == 5)
    worker.step(RequestOutput(uid=handle.uid, token_id=5, finish_reason="length"))
    assert [output.token_id for output in await reading] == [1, 2, 100, 5]
    assert taken == [(3, None), (4, scored)]


@pytest.mark.parametrize("error", [KeyError(1), PanicException("a library in Rust panicked")])
async def test_what_cannot_take_a_token_costs_its_own_request_alone(
    client: EngineClient, worker: PlayedWorker, error: BaseException
) -> None:
    broken = await client.submit(EngineRequest(prompt_token_ids=(1, 2), task=generate(9)), RequestContext())
    reading = asyncio.create_task(outputs_of(broken))
    await asyncio.sleep(0)

    def stumble(token_id: int, output: RequestOutput | None) -> bool:
        raise error

    broken.on_token = stumble
    worker.step(RequestOutput(uid=broken.uid, token_id=1))
    with pytest.raises(EngineError, match="failed on this request"):
        await reading
    assert client.counts.request_failed.keys() <= set(FAILURES), "an end that is not shown as 0 before the first"
    broken.close()
    assert isinstance(await worker.receive(), EngineRequest)
    assert await worker.receive() == Abort(broken.uid)
    assert client.ready()


async def test_closing_an_unfinished_request_aborts_it_once(client: EngineClient, worker: PlayedWorker) -> None:
    handle = await client.submit(ONE, RequestContext())
    assert isinstance(await worker.receive(), EngineRequest)
    handle.close()
    handle.close()
    assert await worker.receive() == Abort(handle.uid)
    assert client.num_inflight == 0
    worker.step(RequestOutput(uid=handle.uid, token_id=1))  # the step that ran meanwhile
    assert await outputs_of(handle) == []


async def test_closing_wakes_who_waits_for_the_next_token(client: EngineClient, worker: PlayedWorker) -> None:
    handle = await client.submit(ONE, RequestContext())
    reader = asyncio.create_task(outputs_of(handle))
    await asyncio.sleep(0)
    handle.close()
    assert await asyncio.wait_for(reader, 60) == []


async def test_a_lost_worker_fails_its_requests_after_the_tokens_that_came(
    client: EngineClient, worker: PlayedWorker
) -> None:
    handle = await client.submit(ONE, RequestContext())
    worker.step(RequestOutput(uid=handle.uid, token_id=1), generation_tokens_total=1)
    worker.link.flush(10)
    worker.link.close()
    assert (await anext(handle)).token_id == 1
    with pytest.raises(WorkerLost):
        await anext(handle)
    assert not client.ready()
    with pytest.raises(Unavailable):
        await client.submit(ONE, RequestContext())
    assert client.info() == INFO
    assert client.stats().generation_tokens_total == 1


async def test_counters_add_up_over_incarnations(client: EngineClient, worker: PlayedWorker) -> None:
    worker.step(generation_tokens_total=5, num_requests_running=3)
    await until(lambda: client.stats().num_requests_running == 3)
    worker.link.close()
    await until(lambda: not client.ready())
    assert client.stats().num_requests_running == 0
    second = PlayedWorker(client)
    await second.become_ready()
    second.step(generation_tokens_total=2, num_requests_running=1)
    await until(lambda: client.stats().num_requests_running == 1)
    assert client.stats().generation_tokens_total == 7
    second.link.close()


async def test_nonsense_from_a_worker_loses_that_worker_only(client: EngineClient, worker: PlayedWorker) -> None:
    handle = await client.submit(ONE, RequestContext())
    worker.link.send(b"\xc1 no message")
    with pytest.raises(WorkerLost):
        await anext(handle)
    second = PlayedWorker(client)
    await second.become_ready()
    assert client.ready()
    second.link.close()


@pytest.mark.parametrize(
    ("reason", "said", "kind"),
    [
        ("error", "numbers ran out", EngineError),
        ("memory", "no memory for its captures", Unavailable),  # it may be sent again
        ("overflow", "logits are infinite", BadRequest),
    ],
)
async def test_the_ways_a_request_can_fail_have_their_own_errors(
    client: EngineClient, worker: PlayedWorker, reason: FinishReason, said: str, kind: type[ApiError]
) -> None:
    handle = await client.submit(ONE, RequestContext())
    worker.step(RequestOutput(uid=handle.uid, finish_reason=reason, error=said))
    with pytest.raises(kind, match=said):
        await anext(handle)
    assert client.num_inflight == 0


async def test_each_step_is_observed_and_a_broken_observer_costs_nothing(
    client: EngineClient, worker: PlayedWorker
) -> None:
    seen: list[int] = []

    def observe(stats: EngineStats) -> None:
        seen.append(stats.iteration_tokens)
        raise RuntimeError("a broken observer")

    client.on_step = observe
    worker.step(iteration_tokens=3)
    worker.step(iteration_tokens=4)
    await until(lambda: seen == [3, 4])
    assert client.ready()


async def test_each_failure_is_counted_once_by_its_code_when_its_reader_sees_it(
    client: EngineClient, worker: PlayedWorker
) -> None:
    lost, refused, left = [
        await client.submit(EngineRequest(prompt_token_ids=[1], task=generate()), RequestContext()) for _ in range(3)
    ]
    worker.step(refusals=(RequestRefused(refused.uid, "no"),))
    with pytest.raises(BadRequest):
        await outputs_of(refused)
    worker.link.close()
    with pytest.raises(WorkerLost):
        await outputs_of(lost)
    left.close()  # it failed too, but its reader had left: failures are counted by readers
    lost.close()
    assert client.counts.requests_submitted == 3
    assert client.counts.request_failed == {"request_refused": 1, "worker_lost": 1}
