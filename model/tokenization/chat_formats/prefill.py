"""Prefilled answers: the end of a prompt with a last message that the answer continues."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from lightwell.model.tokenization.chat_formats.for_simple_templates import REASONING_FIELDS, Row
from lightwell.model.tokenization.template_client import ChatTemplateError

_MARK = "ZqEndOfPrefill "
"""Mark after the text that is continued. The space shows whether a template strips the text."""


def with_mark(rows: Sequence[Row]) -> list[Row]:
    """Return messages with a mark after the content of the last one, or after its reasoning if it has no content."""
    *before, last = rows
    fields = [name for name in REASONING_FIELDS if last.get(name)] if not last["content"] else []
    return [*before, {**last, **{name: _marked(last[name]) for name in fields or ("content",)}}]


def _marked(content: str | list[dict[str, Any]]) -> Any:
    if isinstance(content, str):
        return content + _MARK
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]


def until_mark(text: str) -> str:
    """Return the prompt up to the mark, as in transformers: without white space if the template strips texts.

    Raises ChatTemplateError if the template does not write the text that is continued.
    """
    before, mark, after = text.rpartition(_MARK.rstrip())
    if not mark:
        raise ChatTemplateError("the template omits the text of the last message, so the answer cannot continue it")
    return before if after.startswith(" ") else before.rstrip()


def shared_end(prompt: str, text: str) -> str:
    """Return the longest common end: templates may leave out the beginning of a text, and the white space after it."""
    if not prompt.endswith(text[-1:]):
        text = text.rstrip()
    sizes = range(1, min(len(prompt), len(text)) + 1)
    length = bisect_left(sizes, True, key=lambda size: not prompt.endswith(text[len(text) - size :]))
    return prompt[len(prompt) - length :]
