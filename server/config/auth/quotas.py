"""Limits of one API key: requests in flight, tokens per minute, and the earliest priority.

Tokens are a bucket that fills steadily up to the tokens of one minute. A prompt is taken from it at admission and each
generated token when it is generated, so that unused `max_tokens` cost nothing. A request is admitted while a token is
in the bucket. It may put the bucket in debt; then the key's next requests wait until the debt is filled. Over time no
key exceeds its limit; for a moment it may exceed it by the tokens of its requests in flight, which `max_requests`
bounds.

Each key has its own counts, so no key waits for another.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from lightwell.server.config.auth.rate_estimate import RateEstimate, retry_after

PRIORITIES = range(-1000, 1001)
"""The priorities that a request may have; the lower, the earlier."""


class LimitReached(Exception):
    """A request is one too many; the message names the limit, `retry_after` is in seconds."""

    def __init__(self, message: str, code: str, retry_after: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None is no limit."""

    max_requests: int | None = None
    tokens_per_minute: int | None = None
    min_priority: int | None = None
    """The earliest priority of its requests; None is the limit for all clients."""


class KeyUse:
    """The use of one key, now and since the server started. `clock` returns seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.num_requests = 0
        """HTTP requests in flight."""
        self.requests_total = 0
        self.tokens_total = 0
        self.refusals: Counter[str] = Counter({"max_requests": 0, "tokens_per_minute": 0})
        self._clock = clock
        self._ends = RateEstimate()
        """The rate at which its requests end."""
        self._limits = KeyLimits()
        self._level = 0.0
        """Tokens in the bucket; negative is debt. It means nothing when there is no limit."""
        self._filled_at = clock()

    @property
    def limits(self) -> KeyLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: KeyLimits) -> None:
        self._fill()
        if limits.tokens_per_minute is not None and self._limits.tokens_per_minute is None:
            self._level = float(limits.tokens_per_minute)
        self._limits = limits

    def begin(self, *, takes_tokens: bool, is_background: bool = False) -> None:
        """Count a new request; `end` removes it from the count. `is_background`: the request is not counted in
        `max_requests`. Raises LimitReached, which names the limit.
        """
        limits = self._limits
        if limits.max_requests is not None and self.num_requests >= limits.max_requests and not is_background:
            self.refusals["max_requests"] += 1
            self._advance_ends()  # only ends of the key's own requests free its places
            seconds = self._ends.seconds_for(self.num_requests + 1 - limits.max_requests)
            raise LimitReached(
                f"The API key {self.name!r} has {self.num_requests} requests in flight; at most "
                f"{limits.max_requests} are accepted.",
                code="key_requests_exceeded",
                retry_after=retry_after(seconds),
            )
        if limits.tokens_per_minute is not None and takes_tokens:
            self._fill()
            if self._level < 1:
                self.refusals["tokens_per_minute"] += 1
                raise LimitReached(
                    f"The API key {self.name!r} has used its {limits.tokens_per_minute} tokens a minute.",
                    code="key_tokens_exceeded",
                    retry_after=max(1, math.ceil((1 - self._level) * 60 / limits.tokens_per_minute)),  # exact
                )
        self.requests_total += 1
        if not is_background:
            self._advance_ends()
            self.num_requests += 1

    def end(self, *, is_background: bool = False) -> None:
        """Count a request out: its answer is sent, or its client is gone."""
        if is_background:
            return
        self._advance_ends()
        self.num_requests -= 1
        self._ends.add(1)

    def charge(self, num_tokens: int) -> None:
        """Take the tokens of an admitted request from the bucket: its prompt, or a generated token."""
        self.tokens_total += num_tokens
        self._fill()
        self._level -= num_tokens

    def _advance_ends(self) -> None:
        self._ends.advance(self._clock(), busy=self.num_requests > 0)

    def _fill(self) -> None:
        now = self._clock()
        capacity = self._limits.tokens_per_minute
        if capacity is not None:
            self._level = min(float(capacity), self._level + (now - self._filled_at) * capacity / 60)
        self._filled_at = now
