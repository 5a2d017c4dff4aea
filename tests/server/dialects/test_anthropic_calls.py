"""Tools in POST /v1/messages, sent and read with the `anthropic` package: a call, and its result."""

from pathlib import Path
from typing import Any

import anthropic
import pytest

from server.http.connection import HttpProtocol
from tests.model.tokenization.chat_formats import templates
from tests.server.bare_server import serving
from tests.server.dialects.test_tools import HERMES_CALL, prompt_of, tool_site

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"name": "get_weather", "description": "The weather now.", "input_schema": SCHEMA}
THINKS = templates.HERMES.replace(
    "{% else %}{{ m.content }}",
    "{% else %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
)
USER: Any = {"role": "user", "content": "How is Köln?"}
ASKED: Any = {"model": "org/tiny", "max_tokens": 500, "tools": [TOOL]}


@pytest.mark.parametrize("thought", ["", "<think>\nHm.\n</think>\n\n"])
async def test_a_call_and_its_result(thought: str, tmp_path: Path) -> None:
    """Send the call's result with all earlier messages, including the model's thinking."""
    async with (
        tool_site(tmp_path, f"{thought}I look.\n{HERMES_CALL}", THINKS) as at,
        serving(at.app, HttpProtocol) as port,
        anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0) as api,
    ):
        message = await api.messages.create(**ASKED, messages=[USER])
        async with api.messages.stream(**ASKED, messages=[USER]) as stream:
            streamed = await stream.get_final_message()
        prompt = prompt_of(at)
        blocks = [block.to_dict() for block in message.content]
        call = next(block for block in message.content if block.type == "tool_use")
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "9 degrees"}
        await api.messages.create(**ASKED, messages=[USER, message.to_param(), {"role": "user", "content": [result]}])
        again = prompt_of(at)
        count = await api.messages.count_tokens(model="org/tiny", tools=[TOOL], messages=[USER])
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
        asked = {"messages": [USER], "max_tokens": 500, "thinking": {"type": "adaptive", "display": display}}
        message = (await at.post("/v1/messages", asked)).json()
    assert [block["type"] for block in message["content"]] == kinds
