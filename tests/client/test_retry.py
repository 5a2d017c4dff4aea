"""The retry policy as a pure function."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell_client import BadRequest, ConnectionFailed, InvalidResponse, RateLimited, StreamInterrupted, TimedOut
from lightwell_client._retry import RetryPolicy, parse_retry_after

NOW = datetime(2025, 11, 20, 12, 0, tzinfo=UTC)
JITTER = st.floats(0, 1, exclude_max=True)


def refused(retry_after: float | None) -> RateLimited:
    return RateLimited("full", status=429, retry_after=retry_after)


@given(attempt=st.integers(0, 10_000), jitter=JITTER)
def test_waits_grow_to_the_cap_and_never_beyond(attempt: int, jitter: float) -> None:
    policy = RetryPolicy(max_retries=10_001)
    wait = policy.wait(attempt, ConnectionFailed("gone"), jitter)
    assert wait is not None
    ceiling = min(policy.longest_wait, policy.first_wait * 2 ** min(attempt, 20))
    assert ceiling / 2 <= wait <= ceiling


@given(asked=st.floats(0, 60), jitter=JITTER)
def test_a_servers_wait_is_never_undercut(asked: float, jitter: float) -> None:
    wait = RetryPolicy().wait(0, refused(asked), jitter)
    assert wait is not None
    assert asked <= wait <= 1.25 * asked


def test_clients_turned_away_together_come_back_apart() -> None:
    assert RetryPolicy().wait(0, refused(4), 0.1) != RetryPolicy().wait(0, refused(4), 0.9)


@pytest.mark.parametrize(
    "failure",
    [
        BadRequest("no", status=400),
        TimedOut("silent"),
        InvalidResponse("what"),
        StreamInterrupted("broke"),
        refused(60.1),
    ],
)
def test_what_asking_again_would_not_mend_is_given_up(failure: Exception) -> None:
    assert RetryPolicy().wait(0, failure, 0.0) is None


def test_the_number_of_retries_is_a_limit() -> None:
    assert RetryPolicy(max_retries=2).wait(1, refused(0), 0.0) == 0
    assert RetryPolicy(max_retries=2).wait(2, refused(0), 0.0) is None
    assert RetryPolicy(max_retries=0).wait(0, refused(0), 0.0) is None
    with pytest.raises(ValueError, match="max_retries is -1"):
        RetryPolicy(max_retries=-1)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime((NOW + timedelta(seconds=90)).astimezone(timezone(timedelta(hours=2)))), 90.0),
        ("Thu, 20 Nov 2025 12:01:30 -0000", 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOW) == seconds


@given(st.text())
def test_no_retry_after_header_breaks_the_client(header: str) -> None:
    seconds = parse_retry_after(header, NOW)
    assert seconds is None or seconds >= 0
