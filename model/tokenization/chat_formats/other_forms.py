"""Forms in which models write calls although their templates write past calls in another form. It knows no template."""

import re
from collections.abc import Collection
from dataclasses import replace

from model.tokenization.chat_formats.call_syntax import CallSyntax

_PYTHON_TAG = "<|python_tag|>"
"""What Llama's models write before some calls, and never before text."""
_CHANNELS = CallSyntax(opening="to=functions.", between="<|channel|>commentary json<|message|>", closing="")
"""The form of the template of gpt-oss."""
_CHANNEL_OPENINGS = ("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.")
_CHANNEL_ENDS = (" <|constrain|>json<|message|>", "<|constrain|>json<|message|>", " json<|message|>", "<|message|>")
_TAG_IN_TAG = re.compile(r"<([^<>\s]+)>\s*(<[^<>]+)")


def with_other_forms(syntax: CallSyntax, special: Collection[str]) -> CallSyntax:
    """Return a template's syntax with the other forms; `special` are the tokenizer's special tokens."""
    others = list(syntax.others)
    if syntax.opening.startswith("{") and _PYTHON_TAG in special:
        others.append(replace(syntax, opening=_PYTHON_TAG + syntax.opening))
    if replace(syntax, others=()) == _CHANNELS:
        others += [
            replace(syntax, between=f"<|channel|>commentary{end}") for end in _CHANNEL_ENDS if " json" not in end
        ]
        others += [CallSyntax(opening, end, "") for opening in _CHANNEL_OPENINGS for end in _CHANNEL_ENDS]
    nested = _TAG_IN_TAG.fullmatch(syntax.opening)
    outer_end = f"</{nested[1]}>" if nested is not None else ""
    if nested is not None and syntax.closing.endswith(outer_end):  # models leave out the outer tag, or only its opening
        closing = syntax.closing.removesuffix(outer_end).rstrip()
        optional_end = syntax.closing.removeprefix(closing)
        next_call = f"{closing}\n{nested[2]}"
        others.append(
            replace(syntax, opening=nested[2], closing=closing, next_call=next_call, optional_end=optional_end)
        )
    return replace(syntax, others=tuple(others))
