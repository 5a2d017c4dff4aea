"""Chat template: renders chat messages as prompt text with the model's own jinja template, in a sandbox.

The result is that of `apply_chat_template` of `transformers`: the same jinja options, extensions, filters, globals and
variables; templates may also use `append` and `pop` of lists. The process that runs a template
(`model.tokenization.template_process`) stops one that would hang or fill memory. Independent of requests and torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.files import read_text
from lightwell.model.checkpoint.folder import one_line
from lightwell.model.tokenization.chat_formats.for_simple_templates import (
    with_arguments_as_text,
    with_known_names,
    with_parts_for,
    with_written_calls,
    write_out,
)
from lightwell.model.tokenization.chat_formats.probe import ToolUse, find_part_roles, find_tool_use
from lightwell.model.tokenization.chat_formats.thoughts import find_tags, probed_tags
from lightwell.model.tokenization.template_client import (
    MAX_CHARACTERS,
    ChatTemplateError,
    TemplateClient,
    shared_client,
)
from lightwell.model.tokenization.tokenizer import Tokenizer

__all__ = ["MAX_SOURCE_CHARACTERS", "ChatTemplate", "ChatTemplateError", "read_template_option"]

MAX_SOURCE_CHARACTERS = 1_000_000
_READS_FUNCTIONS = re.compile(r"(?s)(?!.*\btools\b).*[+~{]\s*functions\b")
_THREAD_CHARACTERS = 20_000
"""Characters from which a conversation is converted to JSON in a thread."""


class ChatTemplate:
    """A compiled chat template. Any number of threads may render."""

    def __init__(self, source: str, tokenizer: Tokenizer, client: TemplateClient | None = None) -> None:
        """Compile `source`. Raises `ChatTemplateError` with the line of a syntax error.

        `client` is the process that renders; None is the shared one.
        """
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ChatTemplateError(
                f"chat template: it has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} are accepted"
            )
        self.source = source
        self._tokenizer = tokenizer
        self._client = shared_client() if client is None else client
        self._source_line = _json_line(source)
        self._reads_functions = _READS_FUNCTIONS.match(source) is not None
        self._client.ask(self._source_line, _json_line(None))
        self.thought_tags = find_tags(source) or probed_tags(self.render) or find_tags(source, tokenizer.ids_of_special)
        """The tags around reasoning in the model's answers, or None if it does not reason."""

    @cached_property
    def tool_use(self) -> ToolUse:
        """Return the template's syntax of tools, detected by rendering some small conversations."""
        end = self._tokenizer.special_tokens.get("eos_token", "")
        thought_end = "" if self.thought_tags is None else self.thought_tags.closing
        return find_tool_use(self._probe, self._tokenizer.ids_of_special, end, thought_end)

    @cached_property
    def part_roles(self) -> frozenset[str]:
        """Return the roles for which the template reads the content as a list of text parts, detected likewise."""
        return find_part_roles(self._probe, self.tool_use.arguments_as_text)

    def _probe(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        return self._client.ask(self._source_line, self._variables(messages, False, None, tools))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the prompt text of a conversation.

        `messages` contain plain JSON values; entries that are None are left out. With `add_generation_prompt` the text
        ends where the assistant's answer begins. `arguments` are further variables of the template, also plain JSON
        values; they may not have the names of the other variables. `tools` are in OpenAI's form.

        Raises `ChatTemplateError` if there is no message, or if the template raises (`raise_exception`), fails on these
        messages, or exceeds a limit.
        """
        variables = self._variables(messages, add_generation_prompt, arguments, tools)
        return self._client.ask(self._source_line, variables)

    async def with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
        """Return messages and tools as the template reads them: unsupported parts are written into the messages.

        Both are in OpenAI's form, except for the arguments of calls, which are objects.
        """
        messages = with_known_names(messages, self.source)
        if any(isinstance(row.get("content"), list) for row in messages):
            messages = with_parts_for(messages, await self._client.in_thread(lambda: self.part_roles))
        if not tools and not any(row.get("role") == "tool" or row.get("tool_calls") for row in messages):
            return messages, tools
        return await self._client.in_thread(lambda: self._as_read(messages, tools))

    def _as_read(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
        use = self.tool_use
        if not use.by_template:
            messages = with_parts_for(messages, ())
            return write_out(messages, tools, use.syntax, takes_system=use.takes_system), ()
        if not use.writes_calls:
            messages = [with_written_calls(row, use.syntax) for row in messages]
        return with_arguments_as_text(messages) if use.arguments_as_text else messages, tools

    async def render_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render as `render` does, for an event loop, which is blocked for a few milliseconds at most."""
        texts = [*(text for row in messages for text in row.values()), *(arguments or {}).values()]
        num_characters = sum(len(text) if isinstance(text, str) else 1 for text in texts)
        if num_characters > MAX_CHARACTERS:
            raise ChatTemplateError(
                f"chat template: its input has {num_characters} characters; at most {MAX_CHARACTERS} are accepted"
            )
        is_large = num_characters > _THREAD_CHARACTERS or any(isinstance(text, list | dict) for text in texts)
        if is_large or tools:
            return await self._client.in_thread(lambda: self.render(messages, add_generation_prompt, arguments, tools))
        variables = self._variables(messages, add_generation_prompt, arguments)
        return await self._client.ask_async(self._source_line, variables)

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        arguments: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> bytes:
        if not messages:
            raise ChatTemplateError("messages is empty; a chat needs at least one message")
        variables = {
            **(_functions(tools or ()) if self._reads_functions else {}),
            **(arguments or {}),
            **self._tokenizer.special_tokens,
            "messages": [{key: value for key, value in row.items() if value is not None} for row in messages],
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _json_line(variables)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(
                "chat template: the messages are nested too deeply, or are not valid JSON"
            ) from error


def read_template_option(option: str) -> str:
    """Return the source of a template given as a file's path or as the template itself (`--chat-template`).

    Raises `ChatTemplateError` if it is neither.
    """
    if "{" in option:
        return option
    try:
        return read_text(Path(option), most=4 * MAX_SOURCE_CHARACTERS)
    except ValueError as error:
        what = f"--chat-template {option!r:.200} is not a jinja template and not a readable file"
        raise ChatTemplateError(f"{what}: {one_line(error)[-200:]}") from error


def _functions(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables of templates that read tools as a text (Firefunction)."""
    written = json.dumps(tools, indent=4, ensure_ascii=False) if tools else ""
    return {"functions": written, "datetime": str(date.today())}


def _json_line(value: Any) -> bytes:
    # Lone surrogates pass here; the text with them is refused later.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
