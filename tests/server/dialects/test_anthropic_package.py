"""The `anthropic` package, unmodified, against a real server on a real port, also with tools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

import anthropic
import pytest
from anthropic.types import ContentBlockParam, Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

from lightwell.server.http.connection import HttpProtocol
from lightwell.server.http.errors import EngineError, QueueFull, Unavailable
from lightwell.server.schemas.anthropic.blocks import BLOCKS, UNREAD_BLOCKS
from tests.model.tokenization.chat_formats import templates
from tests.server.bare_server import serving
from tests.server.dialects.test_tools import HERMES_CALL, prompt_of, tool_site
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, events_of, site

MODEL = "org/tiny"
USER: Any = {"role": "user", "content": "hello"}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@asynccontextmanager
async def client(
    folder: Path, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Site]]:
    """Open a client of a new server on its own port. The API key is `key`."""
    async with site(folder, engine, api_key=("key",)) as at, serving(at.app, HttpProtocol) as port:
        asked = {"api_key": "key", "max_retries": 0, **options}
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", **asked) as api:
            yield api, at


async def test_a_stream_adds_up_to_the_message(tmp_path: Path) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 9, "messages": [USER], "stop_sequences": ["x"]}
    async with client(tmp_path, FakeEngine(script=tuple("Grüße ".encode()))) as (api, _):
        whole = await api.messages.create(**asked)
        async with api.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
    Message.model_validate(whole.to_dict(), strict=True)
    assert whole._request_id is not None
    assert final.to_dict(exclude_none=True) | {"id": whole.id} == whole.to_dict(exclude_none=True)
    assert [text] == [block.text for block in final.content if block.type == "text"] == ["Grüße G"]


@pytest.mark.parametrize("more", [{}, {"attention": {"layers": 0}}])
async def test_tokens_that_are_written_as_they_come_are_events_like_the_others(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """Compare a stream over a socket with the same stream in process, where the application writes all tokens and half
    a character gives no event.
    """
    body: Any = {"model": MODEL, "max_tokens": 9, "messages": [USER], "stream": True}
    engine = FakeEngine(script=tuple("Grüße ".encode()))
    async with client(tmp_path, engine) as (api, at):
        stream = await api.messages.create(**body, extra_body=more)
        written = [event.to_dict() async for event in stream]
        sent = events_of(await at.post("/v1/messages", {**body, **more}, headers={"x-api-key": "key"}))
    assert (engine.submitted[0].handle.on_token is None) == ("attention" in more)
    for events in (sent, written):
        events[0]["message"]["id"] = "msg_1"
        for event in events:
            EVENT.validate_python(event, strict=True)
    half = {"type": "text_delta", "text": ""}
    assert [event for event in written if more or event.get("delta") != half] == sent


ERRORS: dict[str, tuple[dict[str, Any], FakeEngine, type[anthropic.APIStatusError], str]] = {
    "a wrong value": ({"max_tokens": -1}, FakeEngine(), anthropic.BadRequestError, "invalid_request_error"),
    "no such model": ({"model": "claude"}, FakeEngine(), anthropic.NotFoundError, "not_found_error"),
    "a full queue": (
        {}, FakeEngine(full=QueueFull("Full.", retry_after=1)), anthropic.RateLimitError, "rate_limit_error",
    ),
    "a server that loads": (
        {}, FakeEngine(refuse=Unavailable("Loading.")), anthropic.ServiceUnavailableError, "overloaded_error",
    ),
    "a failure": ({}, FakeEngine(refuse=EngineError("boom")), anthropic.InternalServerError, "api_error"),
    "no time": (
        {"extra_body": {"timeout": 1e-6}}, FakeEngine(), anthropic.GatewayTimeoutError, "timeout_error",
    ),
    "a large body": (
        {"system": "," * 3_000_000}, FakeEngine(), anthropic.ContentTooLargeError,
        "request_too_large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
async def test_errors_arrive_as_the_packages_own(what: str, tmp_path: Path) -> None:
    more, engine, kind, name = ERRORS[what]
    async with client(tmp_path, engine) as (api, _):
        with pytest.raises(kind) as caught:
            await api.messages.create(**{"model": MODEL, "max_tokens": 2, "messages": [USER], **more})
    assert str(caught.value.type) == name
    assert caught.value.request_id
    if name != "request_too_large":  # missing in the package's types
        assert ErrorResponse.model_validate(caught.value.body).request_id == caught.value.request_id


async def test_a_wrong_key_and_a_failing_stream_arrive_as_the_packages_own_errors(tmp_path: Path) -> None:
    async with client(tmp_path, api_key="wrong") as (api, _):
        with pytest.raises(anthropic.AuthenticationError, match="x-api-key"):
            await api.messages.create(model=MODEL, max_tokens=2, messages=[USER])
    async with client(tmp_path, FakeEngine(fail_after=2, failure=EngineError("boom"))) as (api, _):
        with pytest.raises(anthropic.APIStatusError, match="boom") as caught:
            async with api.messages.stream(model=MODEL, max_tokens=9, messages=[USER]) as stream:
                await stream.get_final_message()
    assert caught.value.type == "api_error"


def test_every_block_of_the_package_is_read_or_refused_with_a_reason() -> None:
    kinds = {kind for block in get_args(ContentBlockParam) for kind in get_args(get_type_hints(block)["type"])}
    assert kinds >= {"text", "image", "tool_use"}
    assert kinds <= BLOCKS.keys() | UNREAD_BLOCKS.keys()


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"name": "get_weather", "description": "The weather now.", "input_schema": SCHEMA}
THINKS = templates.HERMES.replace(
    "{% else %}{{ m.content }}",
    "{% else %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
)
QUESTION: Any = {"role": "user", "content": "How is Köln?"}
ASKED: Any = {"model": "org/tiny", "max_tokens": 500, "tools": [TOOL]}


@pytest.mark.parametrize("thought", ["", "<think>\nHm.\n</think>\n\n"])
async def test_a_call_and_its_result(thought: str, tmp_path: Path) -> None:
    """Send the call's result with all earlier messages, including the model's thinking."""
    async with (
        tool_site(tmp_path, f"{thought}I look.\n{HERMES_CALL}", THINKS) as at,
        serving(at.app, HttpProtocol) as port,
        anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0) as api,
    ):
        message = await api.messages.create(**ASKED, messages=[QUESTION])
        async with api.messages.stream(**ASKED, messages=[QUESTION]) as stream:
            streamed = await stream.get_final_message()
        prompt = prompt_of(at)
        blocks = [block.to_dict() for block in message.content]
        call = next(block for block in message.content if block.type == "tool_use")
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "9 degrees"}
        await api.messages.create(
            **ASKED, messages=[QUESTION, message.to_param(), {"role": "user", "content": [result]}]
        )
        again = prompt_of(at)
        count = await api.messages.count_tokens(model="org/tiny", tools=[TOOL], messages=[QUESTION])
    assert "get_weather" in prompt
    assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert message.stop_reason == streamed.stop_reason == "tool_use"
    thinking = [{"type": "thinking", "thinking": "Hm.", "signature": ""}] if thought else []
    for each in (blocks, [block.to_dict() for block in streamed.content]):
        assert each[-1].pop("id")
        assert each == [
            *thinking,
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "name": "get_weather", "input": {"city": "Köln"}},
        ]
    assert "9 degrees" in again
    assert '"Köln"' in again
    assert ("Hm." in again) == bool(thought)


@pytest.mark.parametrize(
    ("display", "kinds"), [("summarized", ["thinking", "text"]), ("omitted", ["text"]), ("updates", ["text"])]
)
async def test_thinking_is_shown_or_left_out_as_the_client_wants(
    display: str, kinds: list[str], tmp_path: Path
) -> None:
    async with tool_site(tmp_path, "<think>\nHm.\n</think>\n\nWarm.", THINKS) as at:
        asked = {"messages": [QUESTION], "max_tokens": 500, "thinking": {"type": "adaptive", "display": display}}
        message = (await at.post("/v1/messages", asked)).json()
    assert [block["type"] for block in message["content"]] == kinds
