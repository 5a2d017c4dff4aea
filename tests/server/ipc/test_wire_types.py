"""Every type of the engine's requests and outputs crosses the socket unchanged, with any values that it may hold.

The values are made from the type hints, so a new field is covered the day it appears.
"""

import collections.abc
import dataclasses
import gc
import inspect
import sys
import types
import typing
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from lightwell.server.engine.messages.outputs import (
    Array,
    EngineInfo,
    EngineStats,
    PromptLogprobs,
    RequestOutput,
    StepOutput,
    TokenLogprobs,
)
from lightwell.server.engine.messages.request import BACKGROUND, EmbedTask, EngineRequest, Intervention, Task
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.ipc import messages

MAX_EXAMPLES = 40
SCALARS: dict[object, st.SearchStrategy[typing.Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),  # all that msgpack can hold
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=20),
    type(None): st.none(),
    bytes: st.binary(max_size=64),
    memoryview: st.binary(max_size=64).map(memoryview),
}


def values(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Return a strategy for any value that a type hint of the contract allows."""
    if hint in SCALARS:
        return SCALARS[hint]
    if hint is TokenLogprobs:
        top = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(allow_nan=False)), max_size=4)
        return st.builds(TokenLogprobs.of, SCALARS[int], SCALARS[float], SCALARS[int], top)
    if hint is Array:
        return st.builds(Array, values(str), values(tuple[int, ...]), SCALARS[memoryview])
    if hint is PromptLogprobs:
        return st.lists(values(TokenLogprobs | None), max_size=4).map(PromptLogprobs.of)
    if is_contract(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values(hints[name]) for name in inspect.signature(hint).parameters})
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(arguments)
        case typing.Union | types.UnionType:
            return st.one_of([values(argument) for argument in arguments])
        case collections.abc.Sequence:
            return st.lists(values(arguments[0]), max_size=4).map(tuple)
        case origin if origin is tuple and arguments[1:] == (...,):
            return st.lists(values(arguments[0]), max_size=4).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values, arguments))
        case origin if origin is dict:
            return st.dictionaries(*map(values, arguments), max_size=4)
    raise NotImplementedError(f"{hint} is not yet known to this test")


def is_contract(item: object) -> bool:
    """Return whether it is a type with declared fields."""
    return isinstance(item, type) and (dataclasses.is_dataclass(item) or issubclass(item, msgspec.Struct))


@given(values(EngineInfo))
@settings(max_examples=MAX_EXAMPLES)
def test_what_a_ready_worker_tells_arrives_as_it_was(sent: EngineInfo) -> None:
    message = messages.decode_from_worker(messages.encode(messages.Ready(sent))[0])
    assert isinstance(message, messages.Ready)
    assert repr(message.info) == repr(sent)


def spelled_out(value: object) -> object:
    """Return the fields of a value with the bytes of its tensors, and with its prompt's log-probabilities."""
    if isinstance(value, Array):
        return value.dtype, value.shape, bytes(value.data)
    if isinstance(value, PromptLogprobs):
        return tuple(value)
    if isinstance(value, msgspec.Struct):
        return type(value), [spelled_out(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return {name: spelled_out(item) for name, item in value.items()}
    return tuple(map(spelled_out, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("task", typing.get_args(Task), ids=lambda task: task.__name__)
@given(data=st.data())
@settings(max_examples=10)
def test_a_request_with_any_task_reaches_the_worker_as_it_was(task: type, data: st.DataObject) -> None:
    sent = structs.replace(data.draw(values(EngineRequest)), task=data.draw(values(task)))
    header, buffers = messages.encode(sent)
    received = messages.decode_to_worker(header, [bytes(buffer) for buffer in buffers])  # as the socket sends them
    assert isinstance(received, EngineRequest)
    assert type(received.task) is task
    assert repr(spelled_out(received)) == repr(spelled_out(sent))
    assert messages.is_urgent(header) == (not sent.is_background)
    row = messages.encode(structs.replace(sent, priority=BACKGROUND))
    assert not messages.is_urgent(row[0])


TOKEN = RequestOutput(uid=3, token_id=5, num_cached_tokens=7)  # the output of most steps, which is seldom drawn
LAST_TOKEN = RequestOutput(uid=4, token_id=6, finish_reason="length")
TENSORS = RequestOutput(uid=5, tensors={each: Array("uint8", (1,), each.encode()) for each in "ab"})


@given(values(StepOutput))
@example(StepOutput(others=(TOKEN, LAST_TOKEN, TENSORS, TOKEN), stats=EngineStats()))
@settings(max_examples=MAX_EXAMPLES)
def test_a_step_reaches_the_api_process_as_it_was(sent: StepOutput) -> None:
    header, buffers = messages.encode(messages.step_message(sent))
    frames = [bytes(buffer) for buffer in buffers]  # as the socket sends them
    message = messages.decode_from_worker(header, frames)
    assert isinstance(message, messages.StepMessage)
    assert repr(message.stats) == repr(sent.stats)
    told = tuple(output for output in sent.outputs if not is_token(output))
    assert repr(spelled_out(message.outputs)) == repr(spelled_out(told))
    tokens = list(zip(message.token_uids, message.token_ids, strict=True))
    assert tokens == [(output.uid, output.token_id) for output in sent.outputs if is_token(output)]


def is_token(output: RequestOutput) -> bool:
    """Return whether the output holds only a token. `num_cached_tokens` and `stop_token_id` are ignored: the first is
    set in the first and last output of a request, the second in the last.
    """
    alone = RequestOutput(uid=output.uid, token_id=output.token_id)
    return output.token_id is not None and structs.replace(output, num_cached_tokens=0, stop_token_id=None) == alone


def test_log_probabilities_of_a_long_prompt_stay_out_of_the_message_and_can_be_read_in_part() -> None:
    """Keep them out, since the message is read on the event loop: 8000 positions with 20 alternatives in it took 33
    ms.
    """
    sent = (None, *(TokenLogprobs.of(i, -i / 7, 1 + i % 5, ((i, -0.5), (i + 1, -1.5))) for i in range(1, 1000)))
    output = RequestOutput(uid=1, token_id=2, prompt_logprobs=PromptLogprobs.of(sent))
    step = messages.step_message(StepOutput(others=(output, output), stats=EngineStats()))
    encoded, buffers = messages.encode(step)
    assert len(encoded) < 600
    message = messages.decode_from_worker(encoded, buffers)
    assert isinstance(message, messages.StepMessage)
    for received_output in message.outputs:
        received = received_output.prompt_logprobs
        assert received is not None
        assert tuple(received) == sent
        for part in (slice(0, 128), slice(100, 300), slice(990, 2000), slice(5, 5), slice(None, None, -3)):
            assert tuple(received[part]) == sent[part]
        assert (received[0], received[-1], len(received)) == (None, sent[-1], 1000)
    with pytest.raises(messages.MessageError, match="buffers 16 to 32 of 31"):
        messages.decode_from_worker(encoded, buffers[:31])


@given(values(EngineRequest), st.data())
@settings(max_examples=MAX_EXAMPLES)
def test_a_message_cut_short_is_refused(sent: EngineRequest, data: st.DataObject) -> None:
    encoded, buffers = messages.encode(sent)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(messages.MessageError):
        messages.decode_to_worker(encoded[:cut], buffers)


def changing(numbers: bytearray) -> EngineRequest:
    """Return a request with an intervention that has these numbers."""
    array = Array("float32", (len(numbers) // 4,), memoryview(numbers))
    change = Intervention(stack="decoder", layer=0, point="attn.hook_z", op="set", array=array)
    return EngineRequest(uid=1, prompt_token_ids=(1,), task=EmbedTask(), arrival_time=0.5, interventions=(change,))


def test_a_request_that_names_a_missing_buffer_is_refused() -> None:
    header, buffers = messages.encode(changing(bytearray(4)))
    assert [bytes(buffer) for buffer in buffers] == [bytes(4)]
    with pytest.raises(messages.MessageError, match="buffer 0 of 0"):
        messages.decode_to_worker(header, [])


def test_the_numbers_of_an_intervention_are_not_copied() -> None:
    """Check that values of many megabytes, which pass through the API process, do not pass through its event loop
    byte by byte.
    """
    numbers = bytearray(1 << 20)
    header, buffers = messages.encode(changing(numbers))
    assert len(header) < 1000
    message = messages.decode_to_worker(header, buffers)
    assert isinstance(message, EngineRequest)
    received = message.interventions[0].array
    assert received is not None
    numbers[0] = 7
    assert bytes(received.data)[0] == 7


def test_threads_read_messages_at_once() -> None:
    """As each `LLM` of a process does: one took the buffers of another's message."""
    sent = [changing(bytearray([number] * 4)) for number in range(4)]
    written = [messages.encode(structs.replace(each, interventions=each.interventions * 50)) for each in sent]

    def read(number: int) -> set[int]:
        found: set[int] = set()
        for _ in range(200):
            message = messages.decode_to_worker(*written[number])
            assert isinstance(message, EngineRequest)
            found |= {bytes(change.array.data)[0] for change in message.interventions if change.array}
        return found

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(sent)) as pool:
            assert [*pool.map(read, range(len(sent)))] == [{0}, {1}, {2}, {3}]
    finally:
        sys.setswitchinterval(interval)


def test_whole_numbers_become_floats_where_floats_are_declared() -> None:
    """Send a temperature of 0, which comes from JSON as an int; the worker must not see two kinds of zero."""
    sent = SamplingParams(max_tokens=1, seed=0, temperature=0)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams)
    assert repr(received.temperature) == "0.0"


@pytest.mark.parametrize(("field", "value"), [("max_tokens", "9"), ("top_p", None), ("logit_bias", {"a": 1.0})])
def test_a_value_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    wrong = structs.replace(SamplingParams(max_tokens=1, seed=0), **{field: value})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=SamplingParams)


def test_alternatives_of_a_token_are_no_objects_of_the_garbage_collector() -> None:
    """It walks all objects on the event loop, and an answer may hold millions of alternatives."""
    top = tuple((i, -i / 7) for i in range(20))
    sent = [RequestOutput(uid=i, token_id=1, logprobs=TokenLogprobs.of(1, -0.5, 1, top)) for i in range(1000)]
    encoded, _ = messages.encode(messages.step_message(StepOutput(others=tuple(sent), stats=EngineStats())))
    gc.collect()
    gc.disable()
    try:
        num_before = len(gc.get_objects())
        message = messages.decode_from_worker(encoded)
        assert len(gc.get_objects()) - num_before < 2 * 1000 + 100
    finally:
        gc.enable()
    assert isinstance(message, messages.StepMessage)
    assert all(each.logprobs is not None and each.logprobs.top == top for each in message.outputs)
