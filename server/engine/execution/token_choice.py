"""Token choice: the next token of each sequence of a step, chosen here or on a GPU."""

from collections.abc import Mapping
from collections.abc import Sequence as ReadOnlySequence
from math import isfinite
from typing import NamedTuple

import torch

from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.model.sampling.row_search import largest, take
from lightwell.model.sampling.sampler import SampledToken, Sampler, SamplerRow
from lightwell.server.engine.captures.request_captures import RequestCaptures
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.execution.device_runner import DevicePass
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.messages.outputs import Failure, TokenLogprobs
from lightwell.server.engine.sequence import Chunk, Sequence


class Placed(NamedTuple):
    """A chunk and the place of its rows in the batch. It is a named tuple for the same reason as `Chunk`."""

    chunk: Chunk
    span: int
    first_row: int

    @property
    def last_row(self) -> int:
        return self.first_row + self.chunk.num_tokens - 1

    @property
    def window(self) -> Window:
        chunk = self.chunk
        return Window(self.span, self.first_row, chunk.start, chunk.num_tokens, chunk.capture_start)


class TokenChoice:
    """Chooses tokens for one network."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._sampler = Sampler(model.config.vocab_size, model.device, model.kernels)

    @staticmethod
    def take(sampling: ReadOnlySequence[Placed], passed: DevicePass, result: StepResult) -> None:
        """Add the tokens of a device that has ended its step to `result`."""
        tokens, numbers = passed.sampled()
        _note_logprobs([at.chunk.sequence for at in sampling], tokens, result)
        _note_tokens(sampling, [token.token_id for token in tokens], numbers, result)

    def choose(
        self,
        sampling: ReadOnlySequence[Placed],
        hidden: torch.Tensor,
        captures: Mapping[int, RequestCaptures],
        result: StepResult,
    ) -> None:
        """Choose a token for each sequence that needs one, from hidden [T, d]."""
        rows = [at.last_row for at in sampling]
        sequences = [at.chunk.sequence for at in sampling]
        changing = [i for i, seq in enumerate(sequences) if captures[seq.uid].patches]
        takes_largest = all(seq.takes_largest_logit for seq in sequences)
        if takes_largest and not changing:
            ids, numbers = self._model.largest_logits(take(hidden, rows))
        else:
            logits = self._model.logits(take(hidden, rows), widen=False)
            if changing:
                logits = logits.float()
            for i in changing:
                captures[sequences[i].uid].change_logits(logits[i : i + 1], sampling[i].chunk.end - 1)
            if takes_largest:
                ids, numbers = largest(logits, self._model.kernels)
            else:
                ids, numbers = self._draw(logits, sequences, result)
        _note_tokens(sampling, ids, numbers, result)
        for seq in sequences:
            error = None if seq.grammar is None else seq.grammar.error
            if error is not None:
                _fail(seq, Failure("grammar", error), result)

    def _draw(
        self, logits: torch.Tensor, sequences: ReadOnlySequence[Sequence], result: StepResult
    ) -> tuple[list[int], list[float]]:
        """Return the sampler's tokens, and their logits; add log-probabilities to `result`."""
        scored = self._sampler.sample(logits, [sampler_row(seq) for seq in sequences])
        ids = [sampled.token_id for sampled in scored]
        _note_logprobs(sequences, scored, result)
        return ids, logits.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()


def _note_tokens(
    sampling: ReadOnlySequence[Placed],
    ids: ReadOnlySequence[int],
    numbers: ReadOnlySequence[float],
    result: StepResult,
) -> None:
    """Add the chosen tokens to `result`, and a failure for each logit that is not finite."""
    result.tokens = {at.chunk.sequence.uid: token_id for at, token_id in zip(sampling, ids, strict=True)}
    # A row with infinity or NaN always gives a token with such a logit.
    for i in [i for i, number in enumerate(numbers) if not isfinite(number)]:
        seq = sampling[i].chunk.sequence
        _fail(seq, not_finite(seq, sampling[i].chunk.end - 1), result)


def _fail(seq: Sequence, failure: Failure, result: StepResult) -> None:
    result.failures[seq.uid] = failure
    result.tokens.pop(seq.uid, None)
    result.logprobs.pop(seq.uid, None)


def _note_logprobs(
    sequences: ReadOnlySequence[Sequence], scored: ReadOnlySequence[SampledToken], result: StepResult
) -> None:
    for seq, sampled in zip(sequences, scored, strict=True):
        if sampled.logprob is not None:
            result.logprobs[seq.uid] = TokenLogprobs.of(sampled.token_id, sampled.logprob, sampled.rank, sampled.top)


def sampler_row(seq: Sequence) -> SamplerRow:
    """Return the sampler's inputs for a sequence that generates."""
    params = seq.sampling_params
    assert params is not None
    grammar = seq.grammar if isinstance(seq.grammar, GrammarMatcher) else None
    return SamplerRow(params, seq.num_tokens, seq.token_ids, seq.num_prompt_tokens, grammar)


def not_finite(seq: Sequence, position: int) -> Failure:
    """Return the failure for logits that allow no choice: the request's fault if it intervenes, else the server's."""
    what = f"the logits at position {position} are infinite or no numbers"
    if seq.is_changed:
        return Failure("overflow", f"interventions: {what} with them; smaller values are accepted")
    return Failure("error", f"{what}: the weights, or their type, do not serve this input")
