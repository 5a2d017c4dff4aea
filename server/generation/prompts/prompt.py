"""Converts the forms that a prompt may take on the wire to token ids that fit the model."""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.prompts.chat_rows import render_chat
from lightwell.server.generation.prompts.text_parts import (
    Cut,
    Keep,
    PromptTooLong,
    groups_of,
    naming,
    read_part,
    size_of,
)
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.http.json_reader import Integers
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import PromptInput
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.tools import ToolDefinition

MAX_TOGETHER = 64
"""Most inputs of one HTTP request in the engine at once; `max_num_seqs` if that is less. A long list must not fill the
queue that all clients share.
"""
_THREAD_BYTES = 8192
"""Longer texts are tokenised in a thread: they would hold up running streams."""
_TEXTS_AT_ONCE = 256
"""Texts that are read before the event loop may do something else."""
_IDS_AT_ONCE, _LISTS_AT_ONCE = 100_000, 16
"""Half of the ids of a prompt, and the prompts, that are packed before the event loop may do something else."""
_ADDED = (0, 0)  # the span of a token that is no part of the text


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the model sees it."""

    ids: "array[int]"
    """The tokens, four bytes each: a request may hold millions."""
    text: str | None = None
    """The text, or None when token ids were given."""
    offsets: "array[int] | None" = None
    """Begin and end of each token in `text`, in characters, one after the other."""
    num_ending: int = 0
    """Special tokens that the tokenizer put after the text: a cut before them keeps them."""
    encoder: "Prompt | None" = None
    """The tokens that an encoder-decoder's encoder reads; the ids above are then the decoder's."""
    second_segment: int | None = None
    """Position of the first token of type 1, or None; some networks give this type to a pair's second text."""

    is_cut: bool = False  # whether it, or the encoder's text, was too long and lost tokens

    def __hash__(self) -> int:
        return hash(self.ids.tobytes())

    @property
    def encoder_ids(self) -> "array[int]":
        """Return the token ids of the encoder of an encoder-decoder."""
        return NOTHING.ids if self.encoder is None else self.encoder.ids

    @property
    def spans(self) -> list[tuple[int, int]] | None:
        """Return the character span of each token in `text`."""
        return None if self.offsets is None else list(zip(self.offsets[::2], self.offsets[1::2], strict=True))

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are read, the encoder's and the decoder's together."""
        return len(self.ids) + len(self.encoder_ids)


def packed(numbers: Iterable[int]) -> "array[int]":
    """Return the numbers in four bytes each. Raises OverflowError for one that is negative, or has more bits."""
    return array("I", numbers)


NOTHING = Prompt(packed(()))
"""The prompt of a question about the weights."""


def within_room(
    model: ServedModel, fit: Callable[[Prompt], Prompt], most: int, *, is_inspection: bool = False
) -> Callable[[Prompt], Prompt]:
    """Return `fit` for the prompts of one HTTP request, one after the other. It raises QueueFull also for the first
    prompt for which the engine has no room next to those before it, so that the following ones are not tokenised.
    A prompt over `most` tokens counts as `most` tokens: it is cut, or refused for its length.
    """
    lengths: list[int] = []

    def fitted(prompt: Prompt) -> Prompt:
        prompt = fit(prompt)
        lengths.append(min(prompt.num_tokens, most))
        if 1 < len(lengths) <= min(MAX_TOGETHER, model.settings.max_num_seqs):
            client = current_request().client
            model.engine.admission.check_size(sum(lengths), client=client, is_inspection=is_inspection)
        return prompt

    return fitted


async def read_prompts(
    model: ServedModel,
    value: PromptInput,
    field: str,
    add_special_tokens: bool = True,
    keep: Keep | None = None,
    fit: Callable[[Prompt], Prompt] = lambda prompt: prompt,
) -> list[Prompt]:
    """Return the prompts of a body's field as `fit` returns each, before the next ones are read. Raises BadRequest for
    empty ones and for ids that the network lacks, and what `fit` raises.

    Texts far over the context are refused, or cut to the end that `keep` names: the caller does the rest of the cut, by
    tokens.
    """
    if isinstance(value, str):
        return [fit(check_tokens(model, await encode(model, value, add_special_tokens, field, keep), field))]
    if not value:
        raise BadRequest(f"{field}: the list is empty; at least one prompt is accepted.", param=field)
    if isinstance(value[0], int):
        return [fit(await read_ids(model, value, field))]
    if isinstance(value[0], str):
        with naming(field):
            texts = [
                await read_part(model, item, f"{field}[{i}]", keep)
                async for i, item in in_turns(enumerate(value), _TEXTS_AT_ONCE)
                if isinstance(item, str)
            ]
            prompts: list[Prompt] = []
            async for begin, group in in_turns(groups_of(texts, size_of), 1):
                encoded = enumerate(await _encoded(model, group, add_special_tokens), begin)
                prompts += [fit(check_tokens(model, prompt, f"{field}[{i}]")) for i, prompt in encoded]
            return prompts
    each = in_turns(enumerate(value), _LISTS_AT_ONCE)
    return [fit(await read_ids(model, ids, f"{field}[{i}]")) async for i, ids in each]


async def read_ids(model: ServedModel, ids: Sequence[int], field: str) -> Prompt:
    """Return token ids as a prompt. Raises BadRequest as `check_ids` does."""
    check_ids(model, ids, field)
    found = packed(())
    async for begin in in_turns(range(0, len(ids), _IDS_AT_ONCE), 2):
        found.extend(ids[begin : begin + _IDS_AT_ONCE])
    return Prompt(found)


def check_not_empty(prompt: Prompt, field: str) -> Prompt:
    """Return the prompt. Raises BadRequest if it has no token."""
    if not prompt.ids:
        got = "" if prompt.text is None else f", got {shown(prompt.text)}"
        raise BadRequest(f"{field}: the prompt is empty; at least one token is accepted{got}.", param=field)
    return prompt


def check_ids(model: ServedModel, ids: Sequence[int], field: str) -> Sequence[int]:
    """Return the ids. Raises BadRequest if there are none or one is outside the vocabulary."""
    if not ids:
        check_not_empty(NOTHING, field)
    least, greatest = (ids.least, ids.greatest) if isinstance(ids, Integers) else (min(ids), max(ids))
    if greatest >= model.config.vocab_size or least < 0:
        wrong = next(i for i in ids if not 0 <= i < model.config.vocab_size)
        raise BadRequest(
            f"{field}: the token id {wrong} is out of range; accepted are 0 to {model.config.vocab_size - 1}.",
            param=field,
            code="invalid_token_id",
        )
    return ids


def check_tokens(model: ServedModel, prompt: Prompt, field: str) -> Prompt:
    """Return the prompt. Raises BadRequest if it is empty, or holds tokens for which the network has no embedding.

    Some checkpoints' tokenizers know more tokens (for padding, say) than the network.
    """
    size = model.config.vocab_size
    if max(check_not_empty(prompt, field).ids) >= size:
        wrong = next(i for i in prompt.ids if i >= size)
        text = model.tokenizer.token_strings([wrong])[0]
        raise BadRequest(
            f"{field}: the text contains {shown(text)}, the token id {wrong}, for which the network has no embedding; "
            f"token ids 0 to {size - 1} are accepted.",
            param=field,
            code="invalid_token_id",
        )
    return prompt


async def encode(model: ServedModel, text: str, add_special_tokens: bool, field: str, keep: Cut = None) -> Prompt:
    """Return a text as a prompt, which may be empty. Raises BadRequest when it is too long to be tokenised."""
    with naming(field):
        text = await read_part(model, text, field, keep)
        (prompt,) = await _encoded(model, [text], add_special_tokens)
        return prompt


async def read_following(model: ServedModel, value: str | Sequence[int], field: str) -> Prompt:
    """Return a text, which may be empty, or the ids that follow a prompt. Raises BadRequest for unknown tokens."""
    if not isinstance(value, str):
        return await read_ids(model, value, field)
    prompt = await encode(model, value, False, field)
    return check_tokens(model, prompt, field) if prompt.ids else prompt


async def _encoded(model: ServedModel, texts: Sequence[str], add_special_tokens: bool) -> list[Prompt]:
    def encoded() -> list[Prompt]:
        # As a batch also where it is one text: only batches leave the interpreter to others meanwhile.
        prompts = []
        for text, encoding in zip(texts, model.tokenizer.encode_batch(texts, add_special_tokens), strict=True):
            spans = encoding.offsets
            num_ending = next((i for i, span in enumerate(reversed(spans)) if span != _ADDED), 0)
            prompts.append(Prompt(packed(encoding.ids), text, packed(chain.from_iterable(spans)), num_ending))
        return prompts

    is_long = sum(map(size_of, texts)) > _THREAD_BYTES
    return await asyncio.to_thread(encoded) if is_long else encoded()


async def read_chat(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    add_generation_prompt: bool = True,
    arguments: Mapping[str, Any] | None = None,
    tools: Sequence[ToolDefinition] = (),
    *,
    is_continued: bool = False,
    keep: Cut = None,
) -> Prompt:
    """Return a conversation as one prompt, as `render_chat` writes it. The template writes the special tokens itself:
    none are added.
    """
    text = await render_chat(model, messages, add_generation_prompt, arguments, tools, is_continued=is_continued)
    return check_tokens(model, await encode(model, text, False, "messages", keep), "messages")


def keep_end(prompt: Prompt, num_tokens: int | None, limit: int) -> Prompt:
    """Cut a prompt to its last `num_tokens` tokens, including tokens that the tokenizer added; -1 means `limit`,
    and None keeps all.
    """
    num_kept = limit if num_tokens == -1 else num_tokens
    if num_kept is None or len(prompt.ids) <= num_kept:
        return prompt
    num_beginning = next((i for i, end in enumerate((prompt.offsets or ())[1::2]) if end), 0)
    num_beginning = num_beginning if num_beginning + prompt.num_ending <= num_kept else 0
    begin = len(prompt.ids) - (num_kept - num_beginning)
    return Prompt(prompt.ids[:num_beginning] + prompt.ids[begin:], num_ending=prompt.num_ending, is_cut=True)


def encoder_limit(model: ServedModel) -> int:
    """Return the most tokens that the encoder of an encoder-decoder reads."""
    encoder = model.config.encoder
    return model.context_limit if encoder is None else min(model.context_limit, encoder.max_model_len)


def fit_input(model: ServedModel, prompt: Prompt, truncate: bool, field: str, limit: int | None = None) -> Prompt:
    """Return an input that is only read, never continued, within the context. Raises BadRequest if it is longer;
    `truncate` cuts the end of the text instead, and keeps the special tokens after it.

    `limit` is the most tokens, if not the context.
    """
    limit = model.context_limit if limit is None else limit
    if len(prompt.ids) <= limit:
        return prompt
    if not truncate:
        raise PromptTooLong(len(prompt.ids), limit, field, "")
    kept = max(limit - prompt.num_ending, 0)
    end = len(prompt.ids) - min(prompt.num_ending, limit)
    offsets = prompt.offsets and prompt.offsets[: 2 * kept] + prompt.offsets[2 * end :]
    return replace(prompt, ids=prompt.ids[:kept] + prompt.ids[end:], offsets=offsets, is_cut=True)


def fit_generation(
    model: ServedModel,
    prompt: Prompt,
    max_tokens: int | None,
    is_explicit: bool,
    truncate: bool,
    field: str,
    *,
    drops_token: bool = False,
) -> tuple[Prompt, int]:
    """Return the prompt and how many tokens may follow it: `max_tokens`, or the rest of the context if it is None.

    `drops_token`: the one token that follows is thrown away, so the prompt may fill the context.

    A default that is not explicit is cut to the room left; an explicit one over it raises BadRequest. `truncate` drops
    the beginning of a prompt that does not fit, so that `max_tokens` (or, for None, a quarter of the context) follow.
    """
    limit = model.context_limit + drops_token
    needed = max_tokens if is_explicit and max_tokens is not None else 1
    if truncate and prompt.encoder is None and len(prompt.ids) + needed > limit:
        wanted = max_tokens if max_tokens is not None and (is_explicit or max_tokens < limit) else max(1, limit // 4)
        if wanted >= limit > 1:
            raise BadRequest(
                f"max_tokens: {wanted} leaves no tokens of the context for the prompt; 1 to {limit - 1} are accepted.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if wanted < limit:
            prompt = Prompt(prompt.ids[-(limit - wanted) :], is_cut=True)
    room = limit - len(prompt.ids)
    if room < 1:
        rest = "" if drops_token else f" and {limit} with the answer"
        raise PromptTooLong(len(prompt.ids), limit - 1, field, rest)
    if max_tokens is None:
        return prompt, room
    if max_tokens > room and is_explicit:
        raise BadRequest(
            f"max_tokens: {max_tokens} is too large: the prompt has {len(prompt.ids)} of {limit} tokens; "
            f"at most {room} are accepted.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return prompt, min(max_tokens, room)
