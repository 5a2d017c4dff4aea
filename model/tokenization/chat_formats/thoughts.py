"""Tags of an answer's reasoning in a chat template, and whether a prompt has opened the reasoning."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lightwell.model.tokenization.chat_formats.for_simple_templates import REASONING_FIELDS
from lightwell.model.tokenization.template_client import ChatTemplateError


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """The tags around reasoning and answers."""

    opening: str
    """Empty, like `closing`, for a template without reasoning, which has only `answer`."""
    closing: str
    answer: str = ""
    """The tag before an answer in text, with reasoning or without."""
    other_answers: tuple[str, ...] = ()
    """Other texts that some answers have in place of `answer`."""
    end: str = ""
    """The text between an answer and the token that ends the message, or ""."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all tags except `end`."""
        return (self.opening, self.closing, self.answer, *self.other_answers)


KNOWN = (
    ThoughtTags("<think>", "</think>"),
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("[THINK]", "[/THINK]"),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtTags("<|channel>thought\n", "<channel|>"),
    ThoughtTags(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        ("<|channel|>commentary<|message|>",),
    ),
)
"""The tags of families of models, most of them <think>; the last ones are gpt-oss's."""


class Start(Enum):
    """The beginning of an answer."""

    THOUGHT = "thought"
    """Reasoning, which the prompt has opened."""
    MAYBE = "maybe"
    """Reasoning, if the answer begins with its opening tag."""
    TAG = "tag"
    """The tag before the answer, without reasoning."""
    ANSWER = "answer"
    """The answer itself, without reasoning."""


def find_tags(source: str, special: Iterable[str] = ()) -> ThoughtTags | None:
    """Return the tags in a template's source, or None. `special` are the tokenizer's special tokens: some templates
    write a tag as a variable, so that it is not in their source.
    """
    tokens = set(special if "reasoning" in source else ())
    named = (tags for tags in KNOWN if (tags.opening if tags.answer else tags.closing) in source)
    return next(named, None) or next((tags for tags in KNOWN if tags.closing in tokens), None)


def probed_tags(render: Callable[[Sequence[Mapping[str, Any]], bool], str]) -> ThoughtTags | None:
    """Return the tags around the reasoning of a message, or the tag of a template without reasoning that writes a text
    between the generation prompt and an answer; None if the template has neither. `render` renders messages, with a
    generation prompt or without.
    """
    user, plain = {"role": "user", "content": "Zquser"}, {"role": "assistant", "content": "Zqplain"}
    told = {**plain, **dict.fromkeys(REASONING_FIELDS, "Zqthought")}
    try:
        prompt, alone = render([user], True).rstrip(), render([user, plain], False).partition("Zqplain")[0]
        before, has_thought, after = render([user, told], False).partition("Zqthought")
    except ChatTemplateError:
        return None
    before, (closing, found, end) = before.rstrip(), after.partition("Zqplain")
    closing, tag = closing.strip(), alone.removeprefix(prompt).lstrip() if alone.startswith(prompt) else ""
    if not has_thought:
        return ThoughtTags("", "", tag) if tag else None
    tag = tag.strip()
    if not closing or not found or "Zqthought" in after:
        return None
    if tag == closing or not closing.endswith(tag):
        tag = ""
    one, other = sorted((prompt, before), key=len)
    opening = other.removeprefix(one).strip() if other.startswith(one) else ""
    if not opening or opening.startswith(closing):  # use the shortest unique text before the reasoning
        parts = re.split("(?=<)", before.partition("Zquser")[2])
        ends = ("".join(parts[number:]) for number in range(len(parts) - 1, -1, -1))
        opening = next((each for each in ends if (before + closing).count(each) == 1), "")
    return ThoughtTags(opening, closing.removesuffix(tag), tag, end=end_before_token(end)) if opening else None


def end_before_token(text: str) -> str:
    """Return the text before the last tag of the end of a message; "" if it has only tags, each of which may end it."""
    text = re.sub(r"<[^<>]*>\s*$", "", text)
    return text if re.search(r">\w+<", text) else ""


def start_of(tags: ThoughtTags | None, prompt: str) -> Start:
    """Return the beginning of the answer to a prompt."""
    if tags is None:
        return Start.ANSWER
    end = prompt.rstrip()
    if tags.opening and end.endswith(tags.opening.rstrip()):
        return Start.THOUGHT
    # The prompt ends with an empty thought, which templates write without thinking, or with a prefilled answer.
    if end.endswith(tags.closing + tags.answer.rstrip()):
        return Start.ANSWER
    return Start.MAYBE if tags.opening else Start.TAG
