"""Limits of the engine client, with a played worker: rejected requests, their costs, and the end of a rejection."""

import pytest
from msgspec.structs import replace

from lightwell.server.dispatch.admission import Cost
from lightwell.server.dispatch.debug_report import admission_state
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.outputs import Array, RequestOutput
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask, Intervention
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.http.errors import ApiError, PayloadTooLarge, QueueFull, Unavailable
from lightwell.server.observability.access_log import RequestRecord
from tests.server.played_worker import ONE, PlayedWorker, outputs_of, until


async def test_captured_bytes_count_until_they_are_read(client: EngineClient, worker: PlayedWorker) -> None:
    with pytest.raises(PayloadTooLarge):
        await client.submit(replace(ONE, capture_bytes=1001), RequestContext())
    first = await client.submit(replace(ONE, capture_bytes=900), RequestContext())
    with pytest.raises(QueueFull, match="900 bytes"):
        await client.submit(replace(ONE, capture_bytes=200), RequestContext())
    worker.step(RequestOutput(uid=first.uid, finish_reason="done"))
    await until(lambda: client.num_inflight == 0)
    assert client.stats().inflight_capture_bytes == 900
    await outputs_of(first)
    assert client.stats().inflight_capture_bytes == 0


async def test_what_is_held_counts_until_the_http_request_is_over(client: EngineClient, worker: PlayedWorker) -> None:
    record = RequestRecord("a")
    of_record = RequestContext(record)
    first = await client.submit(replace(ONE, capture_bytes=900), of_record)
    worker.step(RequestOutput(uid=first.uid, finish_reason="done"))
    await outputs_of(first)
    client.hold_capture(900, request_context=of_record)
    with pytest.raises(QueueFull, match="900 bytes"):
        await client.submit(replace(ONE, capture_bytes=200), RequestContext())
    for call in record.at_end:
        call()
    assert client.stats().inflight_capture_bytes == 0
    client.hold_capture(900, request_context=RequestContext())  # without a record of a request nothing is held
    assert client.stats().inflight_capture_bytes == 0


async def test_the_blocks_that_requests_may_need_are_bounded_by_the_workers_cache(worker: PlayedWorker) -> None:
    client = worker.client
    client.admission.tokens.limit = 10_000
    large, too_large, small = (replace(ONE, encoder_token_ids=(5,) * length) for length in (1680, 90, 80))
    first = await client.submit(large, RequestContext())  # 105 blocks, and one of the decoder
    with pytest.raises(QueueFull, match=r"need 106 blocks .* this one's 7 .* exceed the 112"):
        await client.submit(too_large, RequestContext())
    assert dict(client.counts.requests_refused) == {"queue_blocks_full": 1}
    (await client.submit(small, RequestContext())).close()
    first.close()


async def test_a_full_queue_says_so_before_anything_is_known_of_a_request(
    client: EngineClient, worker: PlayedWorker
) -> None:
    client.check_room(3, request_context=RequestContext())
    handles = [await client.submit(ONE, RequestContext()) for _ in range(2)]
    client.check_room(1, request_context=RequestContext())
    with pytest.raises(QueueFull, match="2 requests are unfinished"):
        client.check_room(2, request_context=RequestContext())
    for handle in handles:
        handle.close()
    client.begin_drain()
    with pytest.raises(Unavailable):
        client.check_room(request_context=RequestContext())


async def test_the_time_to_wait_follows_from_what_the_worker_ends(client: EngineClient, worker: PlayedWorker) -> None:
    """Reject the next request if the first has waited longer than `max_queue_time` and no request has ended."""
    admission, now = client.admission, [100.0]
    for timed in (admission, admission.requests, admission.tokens, admission.blocks, admission.capture):
        timed._clock = lambda: now[0]
    admission.max_queue_time = 0.02
    first = await client.submit(ONE, RequestContext())
    now[0] += 0.05
    with pytest.raises(QueueFull, match="--max-queue-time"):
        await client.submit(ONE, RequestContext())
    worker.step(RequestOutput(uid=first.uid, token_id=1, finish_reason="stop"))
    await outputs_of(first)
    (await client.submit(ONE, RequestContext())).close()


@pytest.mark.parametrize(
    ("seed", "values"),
    [
        (1 << 70, Array("float32", (4,), bytes(16))),  # no integer of the wire
        (0, Array("float32", (4,), memoryview(bytes(32))[::2])),  # a socket cannot send such bytes
    ],
)
async def test_a_request_that_cannot_be_sent_leaves_nothing_behind(
    client: EngineClient, worker: PlayedWorker, seed: int, values: Array
) -> None:
    change = Intervention(stack="decoder", layer=0, point="attn.hook_z", op="set", array=values)
    task = GenerateTask(sampling=SamplingParams(max_tokens=4, seed=seed))
    record = RequestRecord("a")
    of_record = RequestContext(record)
    with pytest.raises((OverflowError, TypeError)):
        await client.submit(
            EngineRequest(prompt_token_ids=(1,), task=task, interventions=(change,), capture_bytes=900), of_record
        )
    counted = admission_state(client.admission)
    assert {name: budget["used"] for name, budget in counted.items()} == dict.fromkeys(counted, 0)
    assert (client.num_inflight, client.counts.requests_submitted, record.prompt_tokens) == (0, 0, 0)
    # The link still works, and there is room.
    handle = await client.submit(replace(ONE, capture_bytes=900), RequestContext())
    while not isinstance(message := await worker.receive(), EngineRequest):
        pass
    assert message.uid == handle.uid
    handle.close()


async def test_captured_bytes_are_free_although_the_abort_cannot_be_sent() -> None:
    taken: list[RequestHandle] = []

    def no_memory(handle: RequestHandle) -> None:
        raise MemoryError

    def take(handle: RequestHandle, error: ApiError | None) -> None:
        taken.append(handle)

    handle = RequestHandle(1, Cost(num_tokens=1, capture_bytes=900), RequestContext(), no_memory, take)
    with pytest.raises(MemoryError):
        handle.close()
    assert taken == [handle]


@pytest.mark.parametrize(("is_complete", "charged"), [(True, 1), (False, 3)])
async def test_tokens_after_a_stop_string_are_not_charged(is_complete: bool, charged: int) -> None:
    record = RequestRecord("a")
    handle = RequestHandle(1, Cost(num_tokens=9, capture_bytes=0), RequestContext(record), id, lambda _, __: None)
    for token_id in range(3):  # of one step
        handle.push_token(token_id)
    await anext(handle)
    handle.close(is_complete=is_complete)
    assert (record.generated_tokens, handle.num_generated_tokens) == (charged, 3)
