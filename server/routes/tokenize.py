"""POST /tokenize and POST /detokenize, as vLLM has them. They need no engine: they answer while the model loads."""

from fastapi import APIRouter

from server.errors import BadRequest
from server.routes.context import AppContext
from server.routes.prompts import check_ids, check_model, encode, render_chat
from server.schemas import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add both routes to the router."""

    # as vLLM answers, which knows no offsets: there where they were asked for
    @router.post("/tokenize", tags=["tokens"], summary="Text to token ids", response_model_exclude_unset=True)
    async def tokenize(body: TokenizeRequest) -> TokenizeAnswer:
        """The token ids of a prompt, or of a conversation as the chat template writes it."""
        check_model(context, body.model)
        if body.messages is not None:
            text = render_chat(context, body.messages, body.add_generation_prompt)
        else:
            text = body.prompt or ""
        adds = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        prompt = await encode(context, text, adds, "prompt" if body.messages is None else "messages")
        strings = context.tokenizer.token_strings(prompt.ids) if body.return_token_strs else None
        answer = TokenizeAnswer(
            count=len(prompt.ids), max_model_len=context.context_limit, tokens=list(prompt.ids), token_strs=strings
        )
        if body.return_offsets:
            answer.offsets = [list(span) for span in prompt.offsets or ()]
        return answer

    @router.post("/detokenize", tags=["tokens"], summary="Token ids to text")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        """The text of token ids."""
        check_model(context, body.model)
        ids = check_ids(context, body.tokens, "tokens") if body.tokens else ()
        try:
            return DetokenizeAnswer(prompt=context.tokenizer.decode(ids, body.skip_special_tokens))
        except ValueError as error:  # ids that pad the network's vocabulary and have no text
            raise BadRequest(f"tokens: {error}", param="tokens", code="invalid_token_id") from error
