"""Converts the engine's outputs for one choice to pieces of final text, with their token ids, log-probabilities and
captures.

It also searches for stop strings, which exist in text only, and measures the times that clients notice. It writes no
JSON.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from lightwell.model.tokenization.detokenizer import Detokenizer, StopMatcher
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.outputs import Array, RequestOutput, Timing, TokenLogprobs
from lightwell.server.http.connection import BodyWriter
from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.http.sse import TokenEvent
from lightwell.server.observability.metrics import ModelMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part that one output of the engine added to a choice."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    tensors: dict[str, Array] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it, or None for the end of text and for length."""


class ChoiceText:
    """The text of one choice as it grows. It ends at a stop string or token, and shows neither unless asked to.

    As in vLLM, the first `min_tokens` tokens complete no stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stop_strings: Sequence[str],
        include_stop: bool,
        min_tokens: int,
        skip_special_tokens: bool,
        kept_ids: frozenset[int],
        end_of_text_ids: frozenset[int],
        exact: bool,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens, kept_ids, exact=exact)
        self._stops = StopMatcher(stop_strings, include_stop)
        self._has_stops = bool(stop_strings)
        self._last_text = ""
        """The text before the stop string that `take_token` has found."""
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self._end_of_text_ids = end_of_text_ids

    def take_token(self, token_id: int) -> str | None:
        """Return the text of a token without tensors that does not end the choice. Returns None if a stop
        string ends in it; then the token must be given to `take`.
        """
        text = self._detokenizer.push(token_id)
        if self._has_stops:
            text = self._read(text, self.num_tokens + 1)
            if self._stops.stopped_by is not None:
                self._last_text = text
                return None
        self.num_tokens += 1
        return text

    def _read(self, raw: str, num_tokens: int) -> str:
        """Return the text that becomes final with `raw`, the text of the last token."""
        return self._stops.push(raw, may_stop=num_tokens > self._min_tokens)

    def take(self, output: RequestOutput) -> Piece:
        """Return the piece that an output adds; its finish_reason is set when the choice is over."""
        self.num_tokens += output.token_id is not None
        finish_reason: str | None = output.finish_reason
        stop_reason: str | int | None = None
        shows_token = output.token_id is not None
        if finish_reason == "stop" and output.stop_token_id is not None:
            shows_token = shows_token and self._include_stop
            if output.stop_token_id not in self._end_of_text_ids:
                stop_reason = output.stop_token_id
        text = self._last_text
        if self._stops.stopped_by is None:
            raw = self._detokenizer.push(output.token_id) if shows_token and output.token_id is not None else ""
            if finish_reason is not None:
                raw += self._detokenizer.flush()
            text = self._read(raw, self.num_tokens)
        if self._stops.stopped_by is not None:
            finish_reason, stop_reason = "stop", self._stops.stopped_by
        elif finish_reason is not None:
            text += self._stops.flush()
        return Piece(
            text=text,
            token_ids=() if output.token_id is None else (output.token_id,),
            logprobs=() if output.logprobs is None else (output.logprobs,),
            prompt_logprobs=output.prompt_logprobs,
            tensors=output.tensors,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )


@dataclass(slots=True, eq=False)
class Run:
    """One choice in flight. Iterate over its pieces; `close` frees its slot in the engine (idempotent)."""

    index: int
    handle: RequestHandle
    text: ChoiceText
    metrics: ModelMetrics
    num_prompt: int
    """Tokens of its prompt."""
    keep_rows: Callable[[], None]
    """Called when the engine has nothing more to report but the client may not have read it all."""
    form_field: str
    """The field of the body that names the text's form."""
    num_cached_tokens: int = 0
    num_accepted: int = 0
    """Drafts that became its tokens."""
    num_rejected: int = 0
    """The other drafts."""
    num_written: int = 0
    """Tokens that are in no piece, because `write_tokens` wrote them."""
    _last_token: float | None = None
    _timing: Timing | None = None
    _is_over: bool = False

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield every piece; the one with a finish_reason is the last. Raises the engine's ApiError."""
        try:
            async for output in self.handle:
                self._note_counts(output)
                if output.token_id is not None:
                    self._see_token()
                self._timing = output.timing or self._timing
                piece = self.text.take(output)
                if piece.finish_reason is not None:
                    self._end(piece.finish_reason)
                    self.handle.close(is_complete=True)  # now: the client may take the last piece much later
                    self.keep_rows()
                yield piece
                if piece.finish_reason is not None:
                    return
        except ApiError as error:
            self._is_over = True  # it failed: not an abort by the client
            if error.code == "grammar_refused" and error.param is None:
                message = f"{self.form_field}: {error.message}"
                raise BadRequest(message, param=self.form_field, code=error.code) from None
            raise
        finally:
            self.close()

    def write_tokens(self, writer: BodyWriter, event: TokenEvent) -> None:
        """Write tokens as soon as they come, bypassing the iteration: apart from the network, a token costs mostly the
        tasks that wake for it.
        """
        take_token, see_token, entry = self.text.take_token, self._see_token, event.entry

        def write(token_id: int, output: RequestOutput | None) -> bool:
            logprobs = None if output is None else output.logprobs
            is_unknown = logprobs is not None and entry is None
            if is_unknown or not writer.is_ready or (text := take_token(token_id)) is None:
                return False
            see_token()
            if output is not None:
                self._note_counts(output)
            self.num_written += 1
            more = None if logprobs is None or entry is None else entry(token_id, logprobs)
            if written := event.of(text, more):
                writer.write(written)
            return True

        self.handle.on_token = write

    def gather_tokens(self, add: Callable[[Piece], None]) -> None:
        """Hand on tokens as soon as they come, bypassing the iteration, as `write_tokens` does. The order is kept if
        `add` also gets each piece of the iteration at once.
        """

        def take(token_id: int, output: RequestOutput | None) -> bool:
            if (text := self.text.take_token(token_id)) is None:
                return False
            self._see_token()
            if output is not None:
                self._note_counts(output)
            logprobs = () if output is None or output.logprobs is None else (output.logprobs,)
            add(Piece(text=text, token_ids=(token_id,), logprobs=logprobs))
            return True

        self.handle.on_token = take

    def _note_counts(self, output: RequestOutput) -> None:
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.num_accepted = max(self.num_accepted, output.num_accepted)
        self.num_rejected = max(self.num_rejected, output.num_rejected)

    def _see_token(self) -> None:
        now = time.monotonic()
        if self._last_token is None:
            self.metrics.time_to_first_token.observe(self.handle.request_context.elapsed)
        else:
            self.metrics.inter_token_latency.observe(now - self._last_token)
        self._last_token = now

    def _end(self, finish_reason: str) -> None:
        self._is_over = True
        now, timing = time.monotonic(), self._timing
        if timing is not None and timing.finished is None:  # a stop string or the client ended it, not the engine
            timing = replace(timing, finished=now)
        self.metrics.observe_end(
            finish_reason, self.handle.request_context.elapsed, timing, self.num_prompt, self.text.num_tokens
        )

    def close(self) -> None:
        """Abort the choice if it is unfinished."""
        if not self._is_over:
            self._end("abort")
        self.handle.close()
