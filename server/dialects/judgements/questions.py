"""Prompts of questions about one input: they share their beginning, and the next token of each is the label of an
option.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from string import ascii_uppercase, digits
from typing import Any, Literal

from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.generation.prompts.chat_rows import render_chat
from lightwell.server.generation.prompts.prompt import Prompt, encode, read_prompts
from lightwell.server.generation.prompts.text_parts import bounded
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.schemas.chat_messages import ChatMessage

_PLACE = "<<the question is here>>"
"""Placeholder for the question while the chat template writes the conversation."""
_GAP = "\n\n"
_CLOSING = "Answer with one label."
_PLAIN_END = "\n\nAnswer:"
"""Text after a question where there is no chat template."""
_LETTERS = (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2)))


@dataclass(frozen=True, slots=True)
class Option:
    """One answer that a question allows."""

    text: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question, independent of the APIs."""

    kind: Literal["predicate", "choice", "score"]
    instructions: str | None
    options: tuple[Option, ...]
    """For a predicate yes, then no; for a score the levels from the lowest."""
    field: str
    """Its field in the body."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the model reads it."""

    prompt: Prompt
    labels: tuple[int, ...]
    """The token of each option."""


async def ask(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    questions: Sequence[Question],
    arguments: Mapping[str, Any] | None,
) -> list[Asked]:
    """Return the questions as prompts about one conversation. Raises BadRequest, also if there are no labels for the
    options of a question, or the answer would not begin with a label.
    """
    for message in messages:  # before megabytes are joined
        bounded(model, _content(message), "input")
    before, after = await _around(model, messages, arguments)

    def labelled() -> tuple[list[dict[str, int]], list[str]]:
        labels = _labels_of(model, questions, after)
        return labels, [_written(*each) + after for each in zip(questions, labels, strict=True)]

    found, texts = await asyncio.to_thread(labelled)
    prompts = await _prompts(model, before, texts, [question.field for question in questions])
    limit = model.context_limit - 1
    for question, prompt in zip(questions, prompts, strict=True):
        if len(prompt.ids) > limit:
            raise BadRequest(
                f"{question.field}: the question and the text before it have {len(prompt.ids)} tokens; at "
                f"most {limit} are accepted.",
                param=question.field,
                code="context_length_exceeded",
            )
    return [Asked(prompt, tuple(labels.values())) for prompt, labels in zip(prompts, found, strict=True)]


async def _around(
    model: ServedModel, messages: Sequence[ChatMessage], arguments: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return the text before and after each question. The question ends the user's last message, or is a message of its
    own if the last one is not the user's.
    """
    if model.chat_template is None:
        if len(messages) == 1 and messages[0].role == "user":
            return _content(messages[0]) + _GAP, _PLAIN_END
        return "".join([f"{each.role}: {_content(each)}{_GAP}" for each in messages]), _PLAIN_END
    *earlier, last = messages
    if last.role == "user":
        conversation = [*earlier, last.model_copy(update={"content": _content(last) + _GAP + _PLACE})]
    else:
        conversation = [*messages, user_message(_PLACE)]
    try:
        text = await render_chat(model, conversation, True, {"enable_thinking": False, **(arguments or {})})
    except ApiError as error:
        error.message = error.message.replace("messages", "input", 1)
        error.param = error.param if error.param == "chat_template_kwargs" else "input"
        raise
    before, place, after = text.rpartition(_PLACE)
    if not place:
        raise BadRequest(
            "input: the model's chat template changes the user's last message, so no question can be appended; start "
            "the server with another --chat-template.",
            param="input",
            code="no_place_for_questions",
        )
    tags = model.chat_template.thought_tags
    if tags is not None and after.rfind(tags.opening) > after.rfind(tags.closing):
        raise BadRequest(
            "chat_template_kwargs: with these values the answer would begin with reasoning instead of a label; values "
            "that turn reasoning off are accepted, if the template has any.",
            param="chat_template_kwargs",
            code="answer_begins_in_reasoning",
        )
    return before, after


def user_message(text: str) -> ChatMessage:
    return ChatMessage.model_validate({"role": "user", "content": text})


def _content(message: ChatMessage) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.tool_calls or ()]
    return "\n".join(filter(None, (message.text, *calls)))


def _written(question: Question, labels: Mapping[str, int]) -> str:
    lines = [f"Question: {question.instructions or 'Which of these fits?'}"]
    for label, option in zip(labels, question.options, strict=True):
        text = "" if label.lower() == option.text.lower() else f": {option.text}"
        lines.append(f"{label}{text}" if option.description is None else f"{label}{text} - {option.description}")
    return "\n".join([*lines, _CLOSING])


# ---- labels


def _labels_of(model: ServedModel, questions: Sequence[Question], after: str) -> list[dict[str, int]]:
    """Return the label of each option of each question, with its token."""
    kept: dict[tuple[str, int], dict[str, int] | int] = {}
    found = []
    for question in questions:
        kind = (question.kind, len(question.options))
        if kind not in kept:
            kept[kind] = _labels(model.tokenizer, model.config.vocab_size, *kind, _CLOSING + after)
        labels = kept[kind]
        if isinstance(labels, int):
            raise BadRequest(
                f"{question.field}: {len(question.options)} options; at most {labels} are accepted, the number of "
                "labels that are a single token in this model's tokenizer.",
                param=question.field,
                code="labels_not_single_tokens",
            )
        found.append(labels)
    return found


def _labels(tokenizer: Tokenizer, vocab_size: int, kind: str, number: int, tail: str) -> dict[str, int] | int:
    """Return labels for `number` options, each a single token after `tail`, or the largest number that has labels."""
    most = 0
    own: dict[str, list[Sequence[str]]] = {"predicate": [("Yes", "No"), ("yes", "no")], "score": [digits]}
    sets = [each[:number] for each in own.get(kind, []) if len(each) >= number]
    # Words have a blank before them, but not at the beginning of a message.
    blanks = ("", " ") if tail[-1].isspace() or tail[-1] in ">]" else (" ", "")
    for candidates, blank in product([*sets, _LETTERS[:26], _LETTERS], blanks):
        single = dict(_single_tokens(tokenizer, vocab_size, candidates, tail, blank))
        if len(single) >= number:
            return {label: single[label] for label in list(single)[:number]}
        most = max(most, len(single) if candidates[0] == "A" else 0)
    return most


def _single_tokens(
    tokenizer: Tokenizer, vocab_size: int, candidates: Sequence[str], tail: str, blank: str
) -> Iterator[tuple[str, int]]:
    """Yield the labels that are one token after `tail`, different from the tokens of other labels, with that token."""
    texts = [tail, *(tail + blank + label for label in candidates)]
    begin, *encoded = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    taken = set()
    for label, ids in zip(candidates, encoded, strict=True):
        if ids[:-1] == begin and ids[-1] < vocab_size and ids[-1] not in taken:
            taken.add(ids[-1])
            yield label, ids[-1]


# ---- tokens


async def _prompts(model: ServedModel, before: str, texts: Sequence[str], fields: Sequence[str]) -> list[Prompt]:
    """Return `before` with each text as a prompt. `before` is read once, and its tokens begin every prompt."""
    adds = model.chat_template is None
    bounded(model, texts[0], fields[0], None)  # the errors of `encode` name the input
    whole = await encode(model, before + texts[0], adds, "input")
    whole = replace(whole, ids=whole.ids[: len(whole.ids) - whole.num_ending])
    # Encoded after the last characters of `before`, so that a question's first token is the same as in the whole text.
    lead = before[-2:]
    parts = await read_prompts(model, [lead + text for text in texts], "questions", False)
    ends = [part.ids[_first_from(part, len(lead)) :] for part in parts]
    shared = whole.ids[: _first_from(whole, len(before))]
    if shared + ends[0] == whole.ids:
        return [Prompt(shared + end) for end in ends]
    # This tokenizer joins both texts at their border.
    return [
        whole,
        *[await encode(model, before + text, adds, field) for text, field in zip(texts[1:], fields[1:], strict=True)],
    ]


def _first_from(prompt: Prompt, place: int) -> int:
    """Return the index of the first token that begins at this character or later."""
    spans = prompt.spans or ()
    return next((i for i, (start, end) in enumerate(spans) if start >= place and end > start), len(spans))
