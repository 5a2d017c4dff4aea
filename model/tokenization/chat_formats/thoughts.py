"""Finds where an answer's reasoning is: the tags that a template has for it, and whether a prompt opens it already."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from model.tokenization.chat_formats.written_out import REASONING_FIELDS
from model.tokenization.template_client import ChatTemplateError


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """What stands around reasoning."""

    opening: str
    closing: str
    answer: str = ""
    """What stands before an answer in text, with reasoning or without."""
    other_answers: tuple[str, ...] = ()
    """Other texts that some answers have in the place of `answer`."""
    end: str = ""
    """The text that ends an answer, before the token that ends the message; "" where it is that token only."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all of them."""
        return (self.opening, self.closing, self.answer, *self.other_answers)


KNOWN = (
    ThoughtTags("<think>", "</think>"),
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("[THINK]", "[/THINK]"),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtTags("<thinking>", "</thinking>"),
    ThoughtTags("<|channel>thought\n", "<channel|>"),
    ThoughtTags(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        ("<|channel|>commentary<|message|>",),
    ),
)
"""The tags that families of models have, most of them <think>; the last are those of gpt-oss."""


class Start(Enum):
    """What an answer begins with."""

    THOUGHT = "thought"
    """Reasoning: the prompt has opened it."""
    MAYBE = "maybe"
    """Reasoning, if its opening tag is there."""
    ANSWER = "answer"
    """The answer: there is no reasoning."""


def find_tags(source: str, special: Iterable[str] = ()) -> ThoughtTags | None:
    """Return the tags that a template's source names, or None. `special` are the tokenizer's special tokens: some
    templates write a tag as a variable, and never in their source.
    """
    there = [tags for tags in KNOWN if (tags.opening if tags.answer else tags.closing) in source]
    if not there and "reasoning" in source:
        tokens = set(special)
        there = [tags for tags in KNOWN if tags.closing in tokens]
    return there[0] if there else None


def probed_tags(render: Callable[[Sequence[Mapping[str, Any]], bool], str]) -> ThoughtTags | None:
    """Return the tags around the reasoning of a message, or None if the template writes none. `render` writes messages,
    with a generation prompt or without. Raises ChatTemplateError.
    """
    user = {"role": "user", "content": "Zquser"}
    plain = {"role": "assistant", "content": "Zqplain"}
    told = {**plain, **dict.fromkeys(REASONING_FIELDS, "Zqthought")}
    try:
        prompt, alone = render([user], True).rstrip(), render([user, plain], False).partition("Zqplain")[0]
        before, thought, after = render([user, told], False).partition("Zqthought")
    except ChatTemplateError:
        return None
    closing, found, end = after.partition("Zqplain")
    closing, before = closing.strip(), before.rstrip()
    if not (thought and found and closing):
        return None
    tag = alone.removeprefix(prompt).strip() if alone.startswith(prompt) else closing
    if tag != closing and closing.endswith(tag):
        closing = closing.removesuffix(tag)
    else:
        tag = ""
    one, other = sorted((prompt, before), key=len)
    opening = other.removeprefix(one).strip() if other.startswith(one) else ""
    if not opening or opening.startswith(closing):  # it is the shortest end that no other place has
        parts = re.split("(?=<)", before.partition("Zquser")[2])
        ends = ("".join(parts[number:]) for number in range(len(parts) - 1, -1, -1))
        opening = next((end for end in ends if (before + closing).count(end) == 1), "")
    return ThoughtTags(opening, closing, tag, end=end_before_token(end)) if opening else None


def end_before_token(text: str) -> str:
    """Return the text before the last tag of the end of a message; "" if there are tags only, as each may end it."""
    text = re.sub(r"<[^<>]*>\s*$", "", text)
    return text if re.search(r">\w+<", text) else ""


def start_of(tags: ThoughtTags | None, prompt: str) -> Start:
    """Return what the answer to a prompt begins with."""
    if tags is None:
        return Start.ANSWER
    end = prompt.rstrip()
    if end.endswith(tags.opening.rstrip()):
        return Start.THOUGHT
    if end.endswith(tags.closing + tags.answer):  # an empty thought, as templates write it that are told not to think
        return Start.ANSWER
    return Start.MAYBE
