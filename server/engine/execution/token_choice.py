"""Token choice: the next token of each sequence of a step, chosen here or on a GPU."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from itertools import accumulate, islice
from math import isfinite

import msgspec
import torch

from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.model.sampling.row_search import largest, take
from lightwell.model.sampling.sampler import SampledToken, Sampler, SamplerRow
from lightwell.server.engine.captures.request_captures import RequestCaptures
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.messages.outputs import Failure, TokenLogprobs
from lightwell.server.engine.sequence import Chunk, Sequence


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A chunk and the place of its rows in the batch. It is a struct for the same reason as `Chunk`."""

    chunk: Chunk
    span: int
    first_row: int

    @property
    def end_row(self) -> int:
        return self.first_row + self.chunk.num_tokens

    @property
    def rows(self) -> range:
        """Return the rows that choose tokens: the last one, and with drafts also those before them."""
        return range(self.end_row - 1 - len(self.chunk.drafts), self.end_row)

    @property
    def window(self) -> Window:
        chunk = self.chunk
        return Window(self.span, self.first_row, chunk.start, chunk.num_tokens, chunk.capture_start)


class TokenChoice:
    """Chooses tokens for one network."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._sampler = Sampler(model.config.vocab_size, model.device, model.kernels)

    def choose(
        self,
        sampling: ReadOnlySequence[Placed],
        hidden: torch.Tensor,
        captures: Mapping[int, RequestCaptures],
        result: StepResult,
    ) -> None:
        """Choose the tokens of each sequence that needs some, from hidden [T, d]: one for each of its rows, up to the
        first wrong draft.
        """
        if [at for at in sampling if at.chunk.drafts]:
            rows = [row for at in sampling for row in at.rows]
        else:
            rows = [at.first_row + at.chunk.num_tokens - 1 for at in sampling]
        changing = [i for i, at in enumerate(sampling) if captures[at.chunk.sequence.uid].patches]
        takes_largest = not [at for at in sampling if not at.chunk.sequence.takes_largest_logit]
        if takes_largest and not changing:
            ids, numbers = self._model.largest_logits(take(hidden, rows))
        else:
            logits = self._model.logits(take(hidden, rows), widen=False)
            if changing:
                logits = logits.float()
            first_rows = [0, *accumulate([len(at.rows) for at in sampling])] if changing else []
            for i in changing:
                own, chunk = logits[first_rows[i] : first_rows[i + 1]], sampling[i].chunk
                captures[chunk.sequence.uid].change_logits(own, chunk.end - len(own))
            if not takes_largest:
                note_tokens(sampling, *self._draw(logits, sampling), result)
                return
            ids, numbers = largest(logits, self._model.kernels)
        note_tokens(sampling, ids, numbers, None, result)

    def _draw(
        self, logits: torch.Tensor, sampling: ReadOnlySequence[Placed]
    ) -> tuple[list[int], list[float], list[SampledToken]]:
        """Return the sampler's token ids, their logits, and the tokens."""
        drawn = self._sampler.sample(logits, [row for at in sampling for row in sampler_rows(at.chunk)])
        ids = [each.token_id for each in drawn]
        places = torch.tensor(ids, device=logits.device)
        return ids, logits.gather(1, places[:, None])[:, 0].tolist(), drawn


def note_tokens(
    sampling: ReadOnlySequence[Placed],
    ids: ReadOnlySequence[int],
    numbers: ReadOnlySequence[float],
    drawn: Iterable[SampledToken] | None,
    result: StepResult,
) -> None:
    """Add the chosen tokens to `result`: of each sequence those up to the first that differs from its draft. A row that
    allows no choice is a failure; after a draft, it is left to the next step.

    numbers: the logits of the tokens. drawn: the tokens with their log-probabilities, or None if no row has any.
    """
    special = [at for at in sampling if at.chunk.drafts or at.chunk.sequence.grammar is not None]
    if not special and all(map(isfinite, numbers)):  # as in nearly every step
        uids = [at.chunk.sequence.uid for at in sampling]
        result.tokens.update(zip(uids, [[token_id] for token_id in ids], strict=True))
        for uid, token in zip(uids, drawn or (), strict=drawn is not None):
            if token.logprob is not None:
                result.logprobs[uid] = [TokenLogprobs.of(token.token_id, token.logprob, token.rank, token.top)]
        return
    pairs = zip(map(SampledToken, ids) if drawn is None else drawn, numbers, strict=True)
    for at in sampling:
        seq, drafts = at.chunk.sequence, at.chunk.drafts
        chosen: list[SampledToken] = []
        for i, (token, number) in enumerate(islice(pairs, len(at.rows))):
            if len(chosen) < i or (i and chosen[-1].token_id != drafts[i - 1].token_id):
                continue  # the row follows a wrong draft
            grammar = drafts[i - 1].grammar if i else seq.grammar
            error = None if grammar is None else grammar.error
            # A row with infinity or NaN always gives a token with such a logit.
            if isfinite(number) and error is None:
                chosen.append(token)
            elif not i:
                failed = not_finite(seq, at.chunk.end - len(at.rows)) if error is None else Failure("grammar", error)
                result.failures[seq.uid] = failed
        if chosen:
            result.tokens[seq.uid] = [token.token_id for token in chosen]
        scored = [(each.token_id, each.logprob, each.rank, each.top) for each in chosen if each.logprob is not None]
        if scored:
            result.logprobs[seq.uid] = [TokenLogprobs.of(*each) for each in scored]


def sampler_rows(chunk: Chunk) -> list[SamplerRow]:
    """Return the sampler's inputs for each row that chooses a token of a sequence."""
    seq = chunk.sequence
    params = seq.sampling_params
    assert params is not None
    if seq.grammar is None and not chunk.drafts:
        return [SamplerRow(params, chunk.start + chunk.num_tokens, seq.token_ids, seq.num_prompt_tokens)]
    grammars = [seq.grammar, *[draft.grammar for draft in chunk.drafts]]
    following = [draft.token_id for draft in chunk.drafts]
    return [
        SamplerRow(
            params,
            seq.num_tokens + i,
            seq.token_ids + following[:i] if i else seq.token_ids,
            seq.num_prompt_tokens,
            grammar if isinstance(grammar, GrammarMatcher) else None,
        )
        for i, grammar in enumerate(grammars)
    ]


def not_finite(seq: Sequence, position: int) -> Failure:
    """Return the failure for logits that allow no choice: the request's fault if it intervenes, else the server's."""
    what = f"the logits at position {position} are infinite or no numbers"
    if seq.is_changed:
        return Failure("overflow", f"interventions: {what} with them; smaller values are accepted")
    return Failure("error", f"{what}: the weights, or their type, do not serve this input")
