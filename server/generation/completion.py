"""Reads prompts for text that continues them, without a chat template."""

from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.generation.grammars import read_grammar
from lightwell.server.generation.prompts.inputs import between_stacks
from lightwell.server.generation.prompts.prompt import (
    encoder_limit,
    fit_generation,
    keep_end,
    read_prompts,
    within_room,
)
from lightwell.server.generation.prompts.text_parts import Keep
from lightwell.server.generation.request import PromptRequest
from lightwell.server.generation.sampling import sampling_params
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Job
from lightwell.server.http.turns import in_turns


async def completion_jobs(model: ServedModel, request: PromptRequest) -> list[Job]:
    """Return the prompts as the engine gets them. Raises BadRequest, with the client's names, if one does not fit.

    With `max_tokens` 0 the engine still takes one step, which scores the prompt; the caller drops its token.
    """
    with request.names.in_errors():
        keep: Keep = "start" if model.config.kind == "encoder-decoder" else "end"
        cut: Keep | None = keep if request.truncate else None
        if request.truncate_prompt_tokens is not None:
            cut = "end"
        most = encoder_limit(model) if keep == "start" else model.context_limit - 1
        fit = within_room(model, lambda prompt: keep_end(prompt, request.truncate_prompt_tokens, most), most)
        prompts = await read_prompts(model, request.prompt, "prompt", request.add_special_tokens, cut, fit)
        prompts = await between_stacks(model, prompts, request.decoder_input, request.truncate, "prompt")
        field = "prompt" if model.config.kind == "decoder" else "decoder_input"
        limit = None if request.max_tokens is None else max(request.max_tokens, 1)
        is_exact = limit is not None and not request.cuts_max_tokens
        grammar = await read_grammar(model, request.constraint)
        jobs = []
        async for prompt in in_turns(prompts, 64):
            fitted, max_tokens = fit_generation(
                model, prompt, limit, is_exact, request.truncate, field, drops_token=request.max_tokens == 0
            )
            sampling = sampling_params(model, request, max_tokens=max_tokens)
            jobs.append(Job(fitted, GenerateTask(sampling=sampling, grammar=grammar)))
    return jobs
