"""Finds where an answer's reasoning is: the tags that a template has for it, and whether a prompt opens it already."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """What stands around reasoning."""

    opening: str
    closing: str
    answer: str = ""
    """What stands before an answer in text, with reasoning or without."""
    other_answers: tuple[str, ...] = ()
    """Other texts that some answers have in the place of `answer`."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all of them."""
        return (self.opening, self.closing, self.answer, *self.other_answers)


KNOWN = (
    ThoughtTags("<think>", "</think>"),
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("[THINK]", "[/THINK]"),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtTags("<|channel>thought\n", "<channel|>"),
    ThoughtTags(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        ("<|channel|>commentary<|message|>",),
    ),
    ThoughtTags("<|think|>", "<|end|><|begin|>assistant", "<|content|>"),
)
"""The tags that families of models have, most of them <think>; the last are those of gpt-oss and of Solar."""


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
