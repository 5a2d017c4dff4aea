"""Turns chat messages into prompt text, through the model's own jinja template, in a sandbox.

It renders what `transformers` renders (`apply_chat_template`): the same jinja options, extensions, filters, globals and
variables. What protects a server from a template that would hang or fill memory is
`model.tokenization.template_sandbox`. It knows one template, but no requests, roles or torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from model.tokenization.template_sandbox import BUDGET, Budget, TemplateEnvironment, bounded_time, check_size
from model.tokenization.tokenizer import Encoding, Tokenizer

MAX_SOURCE_CHARACTERS = 1_000_000


class ChatTemplateError(ValueError):
    """The template is broken, or it refused or could not render these messages. The message is one line."""


class ChatTemplate:
    """A compiled chat template. Rendering changes nothing, so any number of threads may render."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compile `source`. Raises `ChatTemplateError` with the line of a syntax error."""
        self.source = source
        self._tokenizer = tokenizer
        try:
            if len(source) > MAX_SOURCE_CHARACTERS:
                raise ValueError(f"it has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} are accepted")
            with bounded_time():
                self._template = TemplateEnvironment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template, line {error.lineno}: {_one_line(error)}") from error
        except Exception as error:
            raise ChatTemplateError(f"chat template: {_one_line(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Write the prompt text of a conversation.

        `messages` hold plain JSON values; entries that are None are left out, as if the key were missing. With
        `add_generation_prompt` the text ends where the assistant's answer begins. `arguments` are further variables of
        the template, plain JSON values too; they may not be named like those that are there.

        Raises `ChatTemplateError` when there is no message, when the template raises (`raise_exception`), fails on
        these messages, or exceeds its budget.
        """
        if not messages:
            raise ChatTemplateError("messages is empty; a chat needs at least one message")
        variables = {
            **(arguments or {}),
            **self._tokenizer.special_tokens,
            "messages": [{key: value for key, value in row.items() if value is not None} for row in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            BUDGET: Budget(),
        }
        parts: list[str] = []
        written = 0
        try:
            with bounded_time():
                for part in self._template.generate(variables):
                    parts.append(part)
                    written += len(part)
                    check_size(written)
        except Exception as error:
            # A template is a program from outside: whatever it does wrong is this conversation's error, not ours.
            raise ChatTemplateError(f"chat template: {_one_line(error)}") from error
        return "".join(parts)

    def encode(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> Encoding:
        """Return the prompt ids of a conversation.

        No special tokens are added: the template writes those it wants, so a template that writes the beginning token
        gets no second one. `transformers` and vLLM do the same.
        """
        text = self.render(messages, add_generation_prompt)
        return self._tokenizer.encode(text, add_special_tokens=False)


def read_template_option(option: str) -> str:
    """Return the source of a template given as a file's path or as the template itself (`--chat-template`).

    Raises `ChatTemplateError` when it is neither.
    """
    if "{" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = _one_line(error)
        raise ChatTemplateError(f"chat template {option!r} is neither a jinja template nor a file: {reason}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
