"""Inputs of requests that generate no text: a text or token ids, a completion, and the input of a separate decoder.

For an encoder-decoder, the encoder reads `input`; the decoder reads its start token, `decoder_input` and
`completion`, in this order. Text for the decoder gets no special tokens; ids as decoder_input are taken as they are,
the start token included.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lightwell.server.generation.prompts.prompt import (
    Prompt,
    encoder_limit,
    fit_input,
    packed,
    read_chat,
    read_following,
    read_prompts,
    within_room,
)
from lightwell.server.generation.prompts.text_parts import Keep
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import PromptInput
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.inspect.inputs import InputFields

_OneText = str | Sequence[int]


async def read_inputs(model: ServedModel, body: InputFields) -> list[Prompt]:
    """Return each input of a body, with its completion, within the context.

    Raises BadRequest, also for a completion of an encoder's input, and for a decoder_input if the model has one stack.
    """
    value, completion, decoder_input, truncate = body.input, body.completion, body.decoder_input, body.truncate
    fit = within_room(model, lambda prompt: prompt, encoder_limit(model), is_inspection=True)
    prompts = await _read(model, value, completion is not None, body.add_special_tokens, truncate, fit)
    prompts = await between_stacks(model, prompts, decoder_input, truncate, "input")
    if completion is not None:
        if model.config.kind == "encoder":
            raise BadRequest(
                "completion: this model is an encoder, which generates no text; null is accepted. Send the whole text "
                "as input.",
                param="completion",
            )
        following = [await read_following(model, item, "completion") for item in _one_each(completion, len(prompts))]
        prompts = [joined(prompt, end) for prompt, end in zip(prompts, following, strict=True)]
    field = "decoder_input" if model.config.kind == "encoder-decoder" else "input"
    return [fit_input(model, prompt, truncate, field) async for prompt in in_turns(prompts, 64)]


async def between_stacks(
    model: ServedModel, prompts: list[Prompt], decoder_input: PromptInput | None, truncate: bool, field: str
) -> list[Prompt]:
    """Return the prompts as they are; for an encoder-decoder they are the encoder's text, and the decoder's first
    tokens are added.

    Raises BadRequest for a decoder_input if the model has one stack, and for a prompt over the encoder's context.
    """
    if model.config.kind != "encoder-decoder":
        if decoder_input is not None:
            raise BadRequest(
                f"decoder_input: this model is of kind {model.config.kind!r} and has no separate decoder input; null "
                f"is accepted. Send the text as {field}.",
                param="decoder_input",
            )
        return prompts
    limit = encoder_limit(model)
    sources = [fit_input(model, prompt, truncate, field, limit) async for prompt in in_turns(prompts, 64)]
    count = len(prompts)
    texts = [None] * count if decoder_input is None else _one_each(decoder_input, count, "decoder_input")
    started = [await read_decoder_start(model, text) for text in texts]
    return [replace(own, encoder=source, is_cut=source.is_cut) for own, source in zip(started, sources, strict=True)]


async def read_decoder_start(model: ServedModel, value: str | Sequence[int] | None) -> Prompt:
    """Return the decoder's tokens before the generated ones, of an encoder-decoder: its start token, the token that it
    must generate first if the model's files name one, and then `value`. Token ids are taken as they are.

    Raises BadRequest for ids the network lacks, and when the model names no start token and none is given.
    """
    if value is not None and not isinstance(value, str):
        return await read_following(model, value, "decoder_input")
    start = model.config.decoder_start_token_id
    if start is None:
        raise BadRequest(
            "decoder_input: the model's config.json has no decoder_start_token_id; token ids that begin with it are "
            "accepted.",
            param="decoder_input",
        )
    forced = model.config.forced_bos_token_id
    begin = packed((start,) if forced is None else (start, forced))
    if value is None:
        return Prompt(begin)
    text = await read_following(model, value, "decoder_input")
    offsets = None if text.offsets is None else packed((0, 0) * len(begin)) + text.offsets
    return Prompt(begin + text.ids, text.text, offsets)


def joined(prompt: Prompt, end: Prompt) -> Prompt:
    """Join two texts into one: the spans of the second count from the beginning of the first."""
    ids = prompt.ids + end.ids
    if prompt.text is None or end.text is None or prompt.offsets is None or end.offsets is None:
        return Prompt(ids, encoder=prompt.encoder)
    shift = len(prompt.text)
    moved = packed(place + shift for place in end.offsets)
    return replace(prompt, ids=ids, text=prompt.text + end.text, offsets=prompt.offsets + moved)


async def _read(
    model: ServedModel,
    value: PromptInput | list[ChatMessage],
    is_continued: bool,
    add_special: bool,
    truncate: bool,
    fit: Callable[[Prompt], Prompt],
) -> list[Prompt]:
    keep: Keep | None = "start" if truncate else None
    if value and isinstance(value[0], ChatMessage):
        return [await read_chat(model, value, is_continued, keep=keep)]  # type: ignore[arg-type]
    return await read_prompts(model, value, "input", add_special, keep, fit)  # type: ignore[arg-type]


def _one_each(value: PromptInput, count: int, field: str = "completion") -> list[_OneText]:
    """Return the texts or id lists of a field. Raises BadRequest when they do not match the inputs in number."""
    is_one = isinstance(value, str) or not value or isinstance(value[0], int)
    items: list[_OneText] = [value] if is_one else list(value)  # type: ignore[list-item,arg-type]
    if len(items) != count:
        raise BadRequest(
            f"{field}: {len(items)} entries for {count} inputs; one for each input is accepted.", param=field
        )
    return items
