"""Whether one more request may come in: limits on requests, tokens and captured bytes, with an honest Retry-After.

Only counts; knows nothing of workers, sockets or HTTP beyond the error it raises.
"""

import math
import time
from collections import deque

from server.errors import PayloadTooLarge, QueueFull

_RATE_WINDOW = 64
"""Ends of requests from which the recent rate is taken."""
_MAX_RETRY_AFTER = 60


class Admission:
    """Counters of all unfinished requests. `admit` raises or counts; `release` and `release_capture` undo it."""

    def __init__(self, *, max_requests: int, max_tokens: int, max_capture_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.max_capture_bytes = max_capture_bytes
        self.num_requests = 0
        self.num_tokens = 0
        self.capture_bytes = 0
        self._ends: deque[float] = deque(maxlen=_RATE_WINDOW)

    def admit(self, num_tokens: int, capture_bytes: int) -> None:
        """Count a request in. Raises QueueFull (429), or PayloadTooLarge (413) for what could never fit.

        `num_tokens` is the prompt and the most it may generate. A request over the token limit is taken when
        nothing else runs: its own size was accepted by the model's context.
        """
        if capture_bytes > self.max_capture_bytes:
            raise PayloadTooLarge(
                f"This request would capture {capture_bytes} bytes; at most {self.max_capture_bytes} are accepted "
                "(--max-capture-bytes). Ask for fewer layers, heads or positions.",
                code="capture_too_large",
            )
        if self.num_requests >= self.max_requests:
            raise QueueFull(
                f"{self.num_requests} requests are unfinished and at most {self.max_requests} are accepted.",
                code="queue_full",
                retry_after=self.retry_after(self.num_requests - self.max_requests + 1),
            )
        if self.num_requests and self.num_tokens + num_tokens > self.max_tokens:
            raise QueueFull(
                f"The unfinished requests hold {self.num_tokens} tokens; with this one's {num_tokens} they would "
                f"exceed the {self.max_tokens} that are accepted.",
                code="queue_tokens_full",
                retry_after=self.retry_after(1),
            )
        if self.capture_bytes + capture_bytes > self.max_capture_bytes:
            raise QueueFull(
                f"{self.capture_bytes} bytes of captures are in flight; with this one's {capture_bytes} they would "
                f"exceed the {self.max_capture_bytes} that are accepted.",
                code="capture_budget_full",
                retry_after=self.retry_after(1),
            )
        self.num_requests += 1
        self.num_tokens += num_tokens
        self.capture_bytes += capture_bytes

    def release(self, num_tokens: int) -> None:
        """The request ended; what it captured may still lie in memory."""
        self.num_requests -= 1
        self.num_tokens -= num_tokens
        self._ends.append(time.monotonic())

    def hold_capture(self, capture_bytes: int) -> None:
        """Tensors of an admitted request, handed on already, stay in memory."""
        self.capture_bytes += capture_bytes

    def release_capture(self, capture_bytes: int) -> None:
        """The request's tensors were handed on or dropped."""
        self.capture_bytes -= capture_bytes

    def retry_after(self, num_requests: int) -> int:
        """Seconds in which `num_requests` end at the recent rate: 1 to 60, 1 when nothing is known."""
        if len(self._ends) < 2:
            return 1
        seconds_each = (time.monotonic() - self._ends[0]) / len(self._ends)
        return max(1, min(_MAX_RETRY_AFTER, math.ceil(num_requests * seconds_each)))
