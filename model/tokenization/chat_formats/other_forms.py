"""Other forms of calls: models use them although their templates do not."""

import re
from collections.abc import Collection
from dataclasses import replace

from model.tokenization.chat_formats.call_syntax import CallSyntax

_PYTHON_TAG = "<|python_tag|>"
"""The token that Llama's models write before some calls, and never before text."""
_CHANNELS = ("commentary", "analysis")
"""Where gpt-oss writes calls, with one of `_ENDS` after the tool's name; its template writes calls in another form."""
_ENDS = (" <|constrain|>json<|message|>", "<|constrain|>json<|message|>", " json<|message|>", "<|message|>")
_TAG_IN_TAG = re.compile(r"<([^<>\s]+)>\s*(<[^<>]+)")


def with_other_forms(syntax: CallSyntax, special: Collection[str]) -> CallSyntax:
    """Return a template's syntax with the other forms; `special` are the tokenizer's special tokens."""
    others = list(syntax.others)
    if syntax.opening.startswith("{") and _PYTHON_TAG in special:
        others.append(replace(syntax, opening=_PYTHON_TAG + syntax.opening))
    if syntax.opening == "to=functions." and syntax.between.startswith("<|channel|>commentary"):
        others += [replace(syntax, between=f"<|channel|>commentary{end}") for end in _ENDS if " json" not in end]
        others += [CallSyntax(f"<|channel|>{name} to=functions.", end, "") for name in _CHANNELS for end in _ENDS]
    nested = _TAG_IN_TAG.fullmatch(syntax.opening)
    outer_end = f"</{nested[1]}>" if nested is not None else ""
    if nested is not None and syntax.closing.endswith(outer_end):  # models leave out the outer tag, or only its opening
        opening, closing = nested[2], syntax.closing.removesuffix(outer_end).rstrip()
        inner = replace(syntax, opening=opening, closing=closing, next_call=f"{closing}\n{opening}")
        others.append(replace(inner, optional_end=syntax.closing.removeprefix(closing)))
    return replace(syntax, others=tuple(others))
