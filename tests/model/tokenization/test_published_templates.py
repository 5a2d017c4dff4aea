"""Each chat template that llama.cpp ships renders conversations as transformers does, except for the listed reasons."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from transformers.utils.chat_template_utils import render_jinja_template

from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.generation.prompts.chat_rows import render_chat
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.generation import ChatCompletionRequest
from tests.server.serving import write_tokenizer
from tests.support.templates import published_templates

pytestmark = pytest.mark.nightly

Row = dict[str, Any]
SYSTEM: Row = {"role": "system", "content": "Be brief."}
USER: Row = {"role": "user", "content": "How is  Bern? <b>\n"}
ANSWER: Row = {"role": "assistant", "content": "Cold."}
CALL: Row = {"id": "call12345", "type": "function", "function": {"name": "look", "arguments": {"city": "Bern"}}}
CALLS: Row = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TWO: Row = {**CALLS, "tool_calls": [CALL, {**CALL, "id": "call67890"}]}
RESULT: Row = {"role": "tool", "tool_call_id": "call12345", "name": "look", "content": "-2"}
TOOL: Row = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
    },
}


def parts(*texts: str) -> list[Row]:
    return [{"type": "text", "text": text} for text in texts]


CONVERSATIONS: dict[str, Row] = {
    "user": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "developer": {"messages": [{**SYSTEM, "role": "developer"}, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, USER]},
    "no generation prompt": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tools and system": {"messages": [SYSTEM, USER], "tools": [TOOL]},
    "call": {"messages": [USER, CALLS, RESULT], "tools": [TOOL]},
    "calls": {"messages": [USER, TWO, RESULT, {**RESULT, "tool_call_id": "call67890"}], "tools": [TOOL]},
    "call and answer": {"messages": [USER, CALLS, RESULT, ANSWER, USER], "tools": [TOOL]},
    "call with text": {"messages": [USER, {**CALLS, "content": "I look."}, RESULT], "tools": [TOOL]},
    "reasoning_content": {"messages": [USER, {**ANSWER, "reasoning_content": "Hm."}, USER]},
    "reasoning": {"messages": [USER, {**ANSWER, "reasoning": "Hm."}, USER]},
    "thinking": {"messages": [USER, {**ANSWER, "thinking": "Hm."}, USER]},
    "reasoning and call": {
        "messages": [USER, {**CALLS, "reasoning_content": "Hm."}, RESULT], "tools": [TOOL],
    },
    "parts of the user": {"messages": [{"role": "user", "content": parts("Alpha7", "Beta7")}]},
    "parts of the system": {"messages": [{"role": "system", "content": parts("Alpha7", "Beta7")}, USER]},
    "parts of the assistant": {"messages": [USER, {"role": "assistant", "content": parts("Alpha7", "Beta7")}, USER]},
    "prefill": {"messages": [USER, {**ANSWER, "content": "It is "}], "continue_final_message": True},
    "prefill after a thought": {
        "messages": [USER, {**ANSWER, "reasoning_content": "Hm."}], "continue_final_message": True,
    },
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    "effort": {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "low"}},
}  # fmt: skip


class Refused(Exception):
    """Raised where a conversation is refused."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def sent(body: Row, write: Callable[[Any], Any]) -> Row:
    """Return a copy of a chat in which the arguments of calls are written."""
    copied: Row = json.loads(json.dumps(body))
    for call in (call for row in copied["messages"] for call in row.get("tool_calls", ())):
        call["function"]["arguments"] = write(call["function"]["arguments"])
    return copied


async def ours(template: ChatTemplate, body: Row) -> str:
    """Return the prompt for a chat; arguments of its calls are text, as OpenAI's clients send them."""
    context: Any = SimpleNamespace(chat_template=template, id="tiny")
    chat = ChatCompletionRequest.model_validate(sent(body, json.dumps))
    rest = (chat.opens_answer, chat.chat_template_kwargs, chat.shown_tools)
    try:
        return await render_chat(context, chat.messages, *rest, is_continued=chat.continue_final_message)
    except BadRequest as error:
        raise Refused(error.message) from None


def theirs(template: ChatTemplate, special: Mapping[str, str], body: Row) -> str:
    """Return the prompt that transformers writes."""
    told = sent(body, json.dumps if template.tool_use.arguments_as_text else lambda arguments: arguments)
    continued = body.get("continue_final_message", False)
    options = {**special, **body.get("chat_template_kwargs", {}), "continue_final_message": continued}
    options["add_generation_prompt"] = body.get("add_generation_prompt", True) and not continued
    try:
        rendered, _ = render_jinja_template([told["messages"]], told.get("tools"), None, template.source, **options)
    except Exception as error:
        raise Refused(str(error)) from None
    return str(rendered[0])


def result_of(render: Callable[[], str]) -> str | None:
    try:
        return render()
    except Refused:
        return None


def with_messages(body: Row, change: Callable[[Row], Row]) -> Row:
    return {**body, "messages": [change(row) for row in body["messages"]]}


def as_system(row: Row) -> Row:
    return {**row, "role": "system"} if row["role"] == "developer" else row


def joined(row: Row) -> Row:
    return row if isinstance(row["content"], str) else {**row, "content": "\n".join(p["text"] for p in row["content"])}


def as_vllm(row: Row) -> Row:
    return {**row, "reasoning": row["reasoning_content"]} if "reasoning_content" in row else row


def documented(template: ChatTemplate, body: Row, by_transformers: str | None) -> Row | None:
    """Return the chat with which transformers renders our prompt, or None if it is the same chat.

    - developer: templates that do not name this role would write it as it is, or refuse it. We change it to system.
    - text parts: templates that expect one text would write Python's list, refuse it or leave it out.
    - `reasoning`: vLLM also gives templates the reasoning by this name, transformers only by the two other names.
    """
    roles = {row["role"] for row in body["messages"]}
    if "developer" in roles and "developer" not in template.source:
        return with_messages(body, as_system)
    if any(not isinstance(row["content"], str) for row in body["messages"]):
        is_read = by_transformers is not None and re.search("Alpha7(?!['\"]).*Beta7", by_transformers, re.DOTALL)
        return None if is_read else with_messages(body, joined)
    reads_vllms = re.search(r"[.]reasoning\b|['\"]reasoning['\"]", template.source)
    return with_messages(body, as_vllm) if reads_vllms else None


@pytest.mark.parametrize("path", published_templates(), ids=lambda path: path.stem)
async def test_a_published_template_writes_what_transformers_writes(
    path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers refuses lists that templates use as queues.
    monkeypatch.setattr("jinja2.sandbox.modifies_known_mutable", lambda value, name: False)
    template = ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
    different = {}
    for title, body in CONVERSATIONS.items():
        if "tools" in body and not template.tool_use.by_template:
            continue  # we write tools and calls into the messages, in a form of our own (`chat_formats.written_out`)
        try:
            written: str | None = await ours(template, body)
        except Refused:
            written = None
        expected = result_of(partial(theirs, template, tokenizer.special_tokens, body))
        other = documented(template, body, expected)
        if other is not None:
            expected = result_of(partial(theirs, template, tokenizer.special_tokens, other))
        if written != expected:
            different[title] = (written, expected)
    assert not different


def test_images_are_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(ValidationError, match="text"):
        ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": [image]}]})
