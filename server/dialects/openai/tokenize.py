"""POST /tokenize and POST /detokenize, as vLLM has them. They need no engine: they answer while the model loads."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from lightwell.server.generation.context import AppContext
from lightwell.server.generation.prompts.chat_rows import render_chat
from lightwell.server.generation.prompts.prompt import Prompt, check_ids, encode
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

_THREAD_TOKENS = 10_000
"""Longer lists are written, or read, in a thread: some microseconds per token would hold up running streams."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post("/tokenize", tags=["tokens"], summary="Text to token ids", response_model=TokenizeAnswer)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Return the token ids of a prompt, or of a conversation as the chat template writes it."""
        model, _ = await context.models.find(body.model)  # adapters have the tokens of the model
        if body.messages is not None:
            asked = (body.messages, body.opens_answer, body.chat_template_kwargs, body.tools or ())
            text = await render_chat(model, *asked, is_continued=body.continue_final_message)
        else:
            text = body.prompt or ""
        adds = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        prompt = await encode(model, text, adds, "prompt" if body.messages is None else "messages", "all")
        return await _answer(len(prompt.ids), lambda: _tokenized(model, body, prompt))

    @router.post("/detokenize", tags=["tokens"], summary="Token ids to text", response_model=DetokenizeAnswer)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """Return the text of token ids."""
        model, _ = await context.models.find(body.model)  # adapters have the tokens of the model
        ids = check_ids(model, body.tokens, "tokens") if body.tokens else ()
        try:
            return await _answer(len(ids), lambda: {"prompt": model.tokenizer.decode(ids, body.skip_special_tokens)})
        except ValueError as error:  # ids that pad the network's vocabulary and have no text
            raise BadRequest(f"tokens: {error}", param="tokens", code="invalid_token_id") from error


async def _answer(num_tokens: int, make: Callable[[], dict[str, Any]]) -> Response:
    content = await asyncio.to_thread(_json, make) if num_tokens > _THREAD_TOKENS else _json(make)
    return Response(content, media_type="application/json")


def _json(make: Callable[[], dict[str, Any]]) -> bytes:
    return orjson.dumps(make())


def _tokenized(model: ServedModel, body: TokenizeRequest, prompt: Prompt) -> dict[str, Any]:
    """Return vLLM's answer, and the offsets, which vLLM does not have, if the request wants them."""
    answer: dict[str, Any] = {
        "count": len(prompt.ids),
        "max_model_len": model.context_limit,
        "tokens": _list(list(prompt.ids)),
        "token_strs": _list(model.tokenizer.token_strings(prompt.ids)) if body.return_token_strs else None,
    }
    if body.return_offsets:
        answer["offsets"] = _list(prompt.spans or ())
    return answer


def _list(values: Sequence[Any]) -> orjson.Fragment:
    """Return a list as JSON, which is written in pieces: orjson holds Python's lock while it writes one."""
    pieces = [orjson.dumps(values[i : i + _THREAD_TOKENS])[1:-1] for i in range(0, len(values), _THREAD_TOKENS)]
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")
