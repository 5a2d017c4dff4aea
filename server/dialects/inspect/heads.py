"""POST /v1/heads: scores of the kind of each head, over a text or over a repeated sequence of random tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from lightwell.model.analysis.head_scores import MEASURES, repeated_random_tokens, repeated_text_scores, text_scores
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    begin,
    described,
    inspection_route,
    rows_of,
    stack_of,
)
from lightwell.server.engine.messages.request import HeadScoresTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import HeadSelection, every_head
from lightwell.server.generation.prompts.prompt import encoder_limit
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.schemas.base import PromptInput, Selector, wrong
from lightwell.server.schemas.chat_messages import Messages
from lightwell.server.schemas.inspect.inputs import LAYERS, STACK, InspectionEntry, InspectionRequest, OwnPart

_DEFAULT_REPEAT = 50
"""Random tokens before they are repeated, as in TransformerLens's Main_Demo."""
_NUM_STRONGEST = 5


class HeadsRequest(InspectionRequest):
    """Body of POST /v1/heads."""

    input: PromptInput | Messages | None = Field(  # type: ignore[assignment]
        None, description="As in /v1/attention. Null: random tokens written twice, which show induction heads."
    )
    layers: Selector = LAYERS
    heads: Selector = Field("all", description='"all", a head, or a list; negative counts from the end.')
    part: OwnPart | None = STACK
    repeat_length: int | None = Field(
        None, ge=2, le=4096, description="Number of random tokens before their repetition; null is at most 50."
    )
    num_sequences: int = Field(4, ge=1, le=64, description="Random sequences that the scores are averaged over.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the random tokens: the same seed, the same tokens.")

    @model_validator(mode="after")
    def _completions_follow_inputs(self) -> "HeadsRequest":
        if self.input is None:
            given = [name for name in ("completion", "decoder_input") if getattr(self, name) is not None]
            if given:
                raise wrong(given[0], f"{given[0]} needs input; set input too")
        elif self.repeat_length is not None:
            raise wrong(
                "repeat_length",
                "repeat_length sets the number of random tokens; leave out either input or repeat_length",
            )
        return self


class HeadsEntry(InspectionEntry):
    """Scores of heads, array scores [layer, head, measure]."""

    part: OwnPart = Field(description="Which stack.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads of the second axis.")
    measures: list[str] = Field(
        description="Means over the text: weight on the previous token, on the token itself and on the first token "
        "(at positions with others), entropy in nats, distance in tokens, and induction: weight on the successor "
        "of an earlier occurrence of the token (a text), or TransformerLens's diagonal (random tokens)."
    )
    strongest: dict[str, list[dict[str, Any]]] = Field(
        description='For each measure the heads with the largest score: [{"layer", "head", "score"}].'
    )
    repeat_length: int | None = Field(None, description="Of random tokens.")
    num_sequences: int | None = Field(None, description="Of random tokens.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post,
        "/v1/heads",
        "Scores of heads: previous token, induction, self, first token, entropy, distance",
        HeadsEntry,
        "One entry an input; one for random tokens.",
    )
    async def heads(request: Request, body: HeadsRequest) -> Response:
        """Return six numbers for each head, reduced next to the running batch: no pattern leaves it.

        With an input they are means over its positions. Without one they are over random tokens, repeated once, which
        is where induction heads show.
        """
        model = await accept(context, body, "/v1/heads")
        part = check_part(model, body.part)
        own = stack_config(model.config, stack_of(part))
        grid = every_head(body.layers, body.heads, own)
        half = None if body.input is not None else _repeat_length(model, body)
        read = body if half is None else body.model_copy(update=_random_input(model, body, half))
        inspection = await begin(model, request, read, 1)
        offsets = () if half is None else (half - 1,)
        task = HeadScoresTask(pairs=grid.pairs, offsets=offsets, part="encoder" if part == "encoder" else "decoder")
        numbers = [
            len(grid.pairs) * len(rows_of(prompt, part).ids) * (len(MEASURES) + len(offsets))
            for prompt in inspection.inputs
        ]
        num_answers = 1 if half is not None else len(inspection.inputs)
        inspection.check_size(
            num_answers * len(grid.pairs) * len(MEASURES), "fewer layers or heads", inspection.inputs[:num_answers]
        )
        found = await inspection.run([(task, 4 * count) for count in numbers])
        rows = [tensors["heads.scores"] for tensors in found]

        def report() -> Iterator[DescribedEntry]:
            if half is not None:
                scores = np.mean([repeated_text_scores(each, half) for each in rows], axis=0)
                fields = {"repeat_length": half, "num_sequences": body.num_sequences}
                yield _entry(inspection, 0, grid, scores, {"part": part, **fields})
                return
            for i, (each, prompt) in enumerate(zip(rows, inspection.inputs, strict=True)):
                yield _entry(inspection, i, grid, text_scores(each, rows_of(prompt, part).ids), {"part": part})

        return await inspection.answer_with(report())


def _repeat_length(model: ServedModel, body: HeadsRequest) -> int:
    """Return the number of repeated random tokens. Raises BadRequest if they do not fit in the context twice."""
    limit = model.context_limit if body.part != "encoder" else encoder_limit(model)
    most = (limit - (model.tokenizer.bos_token_id is not None)) // 2
    if body.repeat_length is None:
        return min(_DEFAULT_REPEAT, most)
    if body.repeat_length > most:
        raise BadRequest(
            f"repeat_length: {body.repeat_length} tokens, written twice, do not fit the context of {limit}; 2 to "
            f"{most} are accepted.",
            param="repeat_length",
        )
    return body.repeat_length


def _random_input(model: ServedModel, body: HeadsRequest, half: int) -> dict[str, Any]:
    """Return the fields of a body with random tokens. In an encoder-decoder the scored part reads them."""
    config, tokenizer = model.config, model.tokenizer
    vocabulary = range(min(config.vocab_size, tokenizer.vocab_size))
    plain = [token_id for token_id in vocabulary if token_id not in tokenizer.special_ids]
    start = tokenizer.bos_token_id
    if config.kind == "encoder-decoder" and body.part != "encoder":
        start = config.decoder_start_token_id if start is None else start
        drawn = repeated_random_tokens(plain, half, body.num_sequences, body.seed, start)
        return {"input": [[plain[0]]] * body.num_sequences, "decoder_input": drawn}
    return {"input": repeated_random_tokens(plain, half, body.num_sequences, body.seed, start)}


def _entry(
    inspection: Inspection, index: int, grid: HeadSelection, scores: NumpyArray, fields: dict[str, Any]
) -> DescribedEntry:
    """Return the entry of scores [pair, measure]."""
    reported = {
        **fields,
        "layers": grid.layers,
        "heads": grid.heads,
        "measures": MEASURES,
        "strongest": {name: _strongest(grid.pairs, scores[:, i]) for i, name in enumerate(MEASURES)},
    }
    shaped = scores.reshape(*grid.shape, len(MEASURES))
    entry = inspection.entry(index, "heads", reported, {"scores": described(shaped, "layer", "head", "measure")})
    if "repeat_length" in fields:  # over several sequences, without the tokens of the first
        plain = {name: value for name, value in entry.fields.items() if not name.endswith(("tokens", "ids", "offsets"))}
        return replace(entry, fields=plain)
    return entry


def _strongest(pairs: Sequence[tuple[int, int]], scores: NumpyArray) -> list[dict[str, Any]]:
    known = np.flatnonzero(~np.isnan(scores))
    order = known[np.argsort(-scores[known], kind="stable")][:_NUM_STRONGEST]
    return [{"layer": pairs[i][0], "head": pairs[i][1], "score": float(scores[i])} for i in order]
