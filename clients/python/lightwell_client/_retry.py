"""Decides when to retry, and after how long. It is pure: no clock, no network, no sleeping."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from lightwell_client._exceptions import ApiError, ConnectionFailed, LightwellError

RETRIED_STATUSES = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `max_retries` retries; waits double from `first_wait` to `longest_wait` seconds, with jitter."""

    max_retries: int = 2
    first_wait: float = 0.25
    longest_wait: float = 8.0
    longest_retry_after: float = 60.0
    """Seconds: after a longer `Retry-After` than this there is no retry; the caller gets the error.
    """

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries is {self.max_retries}; it must be 0 or more")

    def wait(self, attempt: int, failure: LightwellError, jitter: float) -> float | None:
        """Return the seconds to wait before attempt `attempt + 1` (the first is 0), or None to give up and raise
        `failure`.

        `failure` came before any byte of an answer was used. `jitter` is a random number in [0, 1): clients that were
        rejected together should not retry together. A server's own Retry-After is never undercut.
        """
        if attempt >= self.max_retries:
            return None
        if isinstance(failure, ConnectionFailed):
            asked = None
        elif isinstance(failure, ApiError) and failure.status in RETRIED_STATUSES:
            asked = failure.retry_after
        else:
            return None
        if asked is None:
            # The exponent is held: 2.0 ** 1024 overflows, and the cap is reached long before.
            return min(self.longest_wait, self.first_wait * 2.0 ** min(attempt, 60)) * (0.5 + 0.5 * jitter)
        return None if asked > self.longest_retry_after else asked * (1 + 0.25 * jitter)


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds from a Retry-After header (RFC 9110, 10.2.3: whole seconds or an HTTP date), or None if
    unreadable.
    """
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())
