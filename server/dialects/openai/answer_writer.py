"""The fields that both of OpenAI's text routes have: of their bodies, and of their answers and chunks."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson

from lightwell.server.dialects.responses import model_name, new_answer_id
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.request import shared_fields
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Job, Started
from lightwell.server.http.sse import DONE, TokenEvent, event
from lightwell.server.schemas.generation import GenerationFields


def text_fields(body: GenerationFields) -> dict[str, Any]:
    """Return the fields of a `TextRequest` that both bodies have."""
    return {
        **shared_fields(body),
        "num_choices": body.n or 1,
        "num_logprob_forms": 2 if body.return_token_ids else 1,
        "constraint": body.constraint,
        "truncate": body.truncate,
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
    }


def prompt_ids(prompt: Prompt) -> list[int]:
    """Return the token ids of a prompt; of an encoder-decoder, its encoder's token ids."""
    return list(prompt.encoder_ids or prompt.ids)


class AnswerWriter:
    """Writes the answer to one request, whole or in chunks, and remembers how far each choice has come."""

    CHUNK: ClassVar[str]
    """The `object` field of a stream's chunks."""

    def __init__(
        self, model: ServedModel, body: GenerationFields, jobs: Sequence[Job], started: Started, id_prefix: str
    ) -> None:
        self.model = model
        self.body = body
        self.jobs = jobs
        self.started = started
        self.num_tokens = dict.fromkeys((run.index for run in started.runs), 0)
        """Tokens of each choice that were in its pieces."""
        self._id = new_answer_id(id_prefix)
        self._created = int(time.time())
        self._model = model_name(model)

    @property
    def may_write_tokens(self) -> bool:
        """Return whether a chunk of a token may contain its text only."""
        return not self.body.return_token_ids and not self.body.counts_as_it_goes

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields before the choices."""
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def usage(self) -> dict[str, Any]:
        """Return the tokens so far of the whole request; a prompt counts once, however many choices it has."""
        runs, each = self.started.runs, len(self.started.runs) // len(self.jobs)
        prompt_tokens = sum(job.prompt.num_tokens for job in self.jobs)
        completion_tokens = sum(self.num_tokens.values()) + sum(run.num_written for run in runs)
        cached = sum(max(run.num_cached_tokens for run in runs[i : i + each]) for i in range(0, len(runs), each))
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if self.body.has_prediction:  # without one, drafts leave no trace in an answer
            accepted, rejected = sum(run.num_accepted for run in runs), sum(run.num_rejected for run in runs)
            drafts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
            usage["completion_tokens_details"] = drafts
        return usage

    def token_event(self, choice: dict[str, Any], entry: Callable[[int, TokenLogprobs], Any] | None) -> TokenEvent:
        """Return the event of a choice's token; `entry` returns its log-probabilities if the request wants them."""
        place = {} if entry is None else {"logprobs": TokenEvent.ENTRY}
        return TokenEvent(self.stream_chunk([choice | place]), entry=entry)

    def stream_chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.head(self.CHUNK), **self._usage_so_far(), "choices": choices}

    def _usage_so_far(self) -> dict[str, Any]:
        if self.body.counts_as_it_goes:
            return {"usage": self.usage()}
        return {"usage": None} if self.body.include_usage else {}  # until the last one

    def end_of_stream(self) -> bytes:
        """Return the last events of a stream: the usage, if the request wants it, and the end mark."""
        if not self.body.include_usage:
            return DONE
        return event(orjson.dumps({**self.stream_chunk([]), "usage": self.usage()})) + DONE
