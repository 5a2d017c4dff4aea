"""Admission of requests: limits on requests, tokens, KV blocks, captured bytes and waiting time, with Retry-After.

If the queue is full, a client (an API key) gets 429 only if it holds its share of the queue, so that one client cannot
block the others. Requests that only capture count as a separate client, so that they block no text. Shares let the
queue grow to at most twice its limit. Captured bytes are memory and have one limit for all clients. Independent of
workers and sockets.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from lightwell.server.config.auth.rate_estimate import RateEstimate, retry_after
from lightwell.server.config.settings import Settings
from lightwell.server.http.errors import QueueFull, too_much_captured


@dataclass(frozen=True, slots=True)
class Cost:
    """The amounts that an unfinished request takes of each budget."""

    num_tokens: int
    """Tokens of its prompt plus the most it may generate."""
    capture_bytes: int
    num_blocks: int = 0
    """Blocks of the KV cache, should it generate all of that."""
    num_read: int = 0
    """Tokens that the model reads for it."""
    is_inspection: bool = False
    """Whether the request only captures; requests for text overtake it."""
    is_background: bool = False
    """True for a row of a batch. Other requests do not wait for rows; only captured bytes are counted for them."""


STEP_MEMORY = 128 << 20
"""Bytes of a worker's memory that captures leave free: the built-in model with eight clients needs about 80 MiB."""


def capture_limit(max_capture_bytes: int, memory_room: int | None) -> int:
    """Return the largest number of captured bytes in flight: `max_capture_bytes`, or less where a worker may take only
    `memory_room` bytes in addition to its model. It is half of that room, since answers are built next to the captured
    tensors; or a sixteenth if the room is small, so that an embedding is still accepted.
    """
    if memory_room is None:
        return max_capture_bytes
    return min(max_capture_bytes, max(memory_room - STEP_MEMORY, memory_room // 8) // 2)


class ResourceBudget:
    """One budget: its limit, the amount that unfinished requests hold, and the rate at which they return it.

    `by_stay`: the rate is the number of requests that end per second, whatever each of them holds; otherwise it is the
    amount that is returned per second.
    """

    def __init__(self, limit: float, clock: Callable[[], float], *, by_stay: bool = False) -> None:
        self.limit = limit
        self.used = 0
        self._by_stay = by_stay
        self._num_holds = 0
        self.held_by: Counter[str] = Counter()
        """The amount that each client holds; clients that hold nothing are left out."""
        self._clock = clock
        self._returns = RateEstimate()

    def has_room(self, amount: int, client: str) -> bool:
        """Return whether `amount` fits within the limit, or within the client's share of a full budget."""
        if self.used + amount <= self.limit:
            return True
        if self.used + amount > 2 * self.limit:  # shares are not enough: 1 + 1/2 + 1/3 + 1/4 is more
            return False
        num_clients = len(self.held_by.keys() | {client})
        return num_clients > 1 and (self.held_by[client] + amount) * num_clients <= self.limit

    def take(self, amount: int, client: str) -> None:
        """Count it as held."""
        self._advance()
        self.used += amount
        self._num_holds += 1
        self.held_by[client] += amount

    def give_back(self, amount: int, client: str) -> None:
        """Count it as free."""
        self._advance()
        self.used -= amount
        self._num_holds -= 1
        self.held_by[client] -= amount
        if not self.held_by[client]:
            del self.held_by[client]
        self._returns.add(1 if self._by_stay else amount)

    def seconds_until_free(self, amount: int) -> float:
        """Return the seconds until `amount` fits, at the current rate of returned amounts."""
        return self.seconds_to_return(self.used + amount - self.limit)

    def seconds_to_return(self, amount: float) -> float:
        """Return the expected seconds until the requests have returned this amount."""
        self._advance()
        return self._returns.seconds_for(amount / self.used if self._by_stay and self.used else amount)

    def _advance(self) -> None:
        self._returns.advance(self._clock(), busy=self._num_holds if self._by_stay else self.used > 0)


class Admission:
    """The counters of all unfinished requests. `admit` raises or counts; `release` and `release_capture` undo it.

    `max_kv_demand` is in times the cache, `max_queue_time` in seconds, 0 for none; `num_seats` is how many run at once.
    `clock` returns seconds.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_tokens: int,
        max_capture_bytes: int,
        max_kv_demand: float = math.inf,
        max_queue_time: float = 0.0,
        num_seats: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests = ResourceBudget(max_requests, clock)
        self.tokens = ResourceBudget(max_tokens, clock)
        self.blocks = ResourceBudget(math.inf, clock)
        """Blocks; the limit is known after `note_cache`."""
        # A rate in bytes per second is too low after small captures: a request that has to wait a second or two for
        # large captures would get a Retry-After of minutes.
        self.capture = ResourceBudget(max_capture_bytes, clock, by_stay=True)
        self._max_capture_bytes = max_capture_bytes
        self.max_queue_time = max_queue_time
        self.refusals: Counter[str] = Counter()
        """Number of refusals, by the code of the error."""
        self._max_kv_demand = max_kv_demand
        self._block_size = 1
        self._num_seats = num_seats
        self._unread: Counter[int] = Counter()
        """Requests with an unread prompt, by the length of the prompt in tokens."""
        self._reading = RateEstimate()
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings, num_workers: int) -> Self:
        """Return the admission of a server with these settings, before its workers' cache and memory are known."""
        return cls(
            max_requests=num_workers * settings.max_num_seqs + settings.max_num_queued_requests,
            max_tokens=settings.max_num_queued_tokens,
            max_capture_bytes=settings.max_capture_bytes,
            max_kv_demand=settings.max_kv_demand,
            max_queue_time=settings.max_queue_time,
            num_seats=num_workers * settings.max_num_seqs,
        )

    def note_cache(self, num_blocks: int, block_size: int) -> None:
        """Set the number of usable blocks of all workers. An encoder has 1, which is no limit."""
        self._block_size = block_size
        self.blocks.limit = self._max_kv_demand * num_blocks if num_blocks > 1 else math.inf

    def note_memory(self, room: int | None) -> None:
        """Note how many bytes a worker may take beyond its model."""
        self.capture.limit = capture_limit(self._max_capture_bytes, room)

    def cost(
        self,
        num_prompt_tokens: int,
        num_encoder_tokens: int,
        max_tokens: int,
        capture_bytes: int,
        *,
        is_inspection: bool = False,
        is_background: bool = False,
    ) -> Cost:
        """Return the cost of a request. Its last generated token is never an input, so it needs no block."""
        num_decoded = num_prompt_tokens + max(0, max_tokens - 1)
        num_read = num_prompt_tokens + num_encoder_tokens
        num_blocks = -(-num_decoded // self._block_size) + -(-num_encoder_tokens // self._block_size)
        return Cost(num_read + max_tokens, capture_bytes, num_blocks, num_read, is_inspection, is_background)

    def check(
        self, num_requests: int = 1, client: str = "", *, waits: bool = True, is_inspection: bool = False
    ) -> None:
        """Raise QueueFull (429) if there is no place for this number of requests, whatever their size. The check is
        cheap: it is called before a request is read or tokenised.

        `waits`: whether the expected waiting time counts. `is_inspection`: whether they only capture.
        """
        client = _account(client, is_inspection=is_inspection)
        if not self.requests.has_room(num_requests, client):
            raise self._refusal(
                "queue_full",
                f"{self.requests.used} requests are unfinished and at most {self.requests.limit} are accepted "
                "(--max-num-queued-requests, --max-num-seqs).",
                self.requests.seconds_until_free(num_requests),
            )
        if waits and self.max_queue_time:
            self._check_wait(self.seconds_to_seat(client))

    def admit(self, cost: Cost, client: str = "", *, waits: bool = True) -> None:
        """Count a request in. Raises QueueFull (429), or PayloadTooLarge (413) if it can never fit.

        A request over the limit of tokens or blocks is accepted when no other request is unfinished: the model's
        context limits its size. `waits`: whether the expected waiting time counts.
        """
        if cost.capture_bytes > self.capture.limit:
            raise too_much_captured(cost.capture_bytes, int(self.capture.limit))
        if cost.is_background:
            self._admit_background(cost.capture_bytes)
            return
        self.check(1, client, waits=waits, is_inspection=cost.is_inspection)
        client = _account(client, is_inspection=cost.is_inspection)
        has_seat = self.requests.used < self._num_seats  # else it waits for one, as do most unread prompts
        if waits and self.max_queue_time and has_seat and not cost.is_inspection:
            self._check_wait(self.seconds_to_read(cost.num_read))
        if self.requests.used:
            self.check_size(cost.num_tokens, cost.num_blocks, client)
        if self.capture.used + cost.capture_bytes > self.capture.limit:
            raise self._refusal(
                "capture_budget_full",
                f"{self.capture.used} bytes of captures wait to be sent; with this one's {cost.capture_bytes} they "
                f"would exceed the {self.capture.limit} that are accepted (--max-capture-bytes, --worker-memory).",
                self.capture.seconds_until_free(cost.capture_bytes),
            )
        self.requests.take(1, client)
        self.tokens.take(cost.num_tokens, client)
        self.blocks.take(cost.num_blocks, client)
        self.hold_capture(cost.capture_bytes)
        if not cost.is_inspection:
            self._advance_reading()
            self._unread[cost.num_read] += 1

    def _admit_background(self, capture_bytes: int) -> None:
        """Admit a row of a batch. Rows may use half of the capture budget; the other half is reserved for other
        requests. Raises QueueFull, which is not counted as a rejected request.
        """
        if self.capture.used and self.capture.used + capture_bytes > self.capture.limit / 2:
            raise QueueFull("Captures of other requests wait to be sent.", code="capture_budget_full", retry_after=1)
        self.hold_capture(capture_bytes)

    def release(self, cost: Cost, client: str = "", *, was_read: bool = True) -> None:
        """Count a request that ended; its captures may still be in memory. `was_read`: note_prompt_read was called."""
        if cost.is_background:
            return
        client = _account(client, is_inspection=cost.is_inspection)
        if not was_read:
            self.note_prompt_read(cost)
        self.requests.give_back(1, client)
        self.tokens.give_back(cost.num_tokens, client)
        self.blocks.give_back(cost.num_blocks, client)

    def hold_capture(self, capture_bytes: int) -> None:
        """Count the tensors of a request that is admitted or was handed on already."""
        if capture_bytes:
            self.capture.take(capture_bytes, "")

    def release_capture(self, capture_bytes: int) -> None:
        """Count the request's tensors as handed on or dropped."""
        if capture_bytes:
            self.capture.give_back(capture_bytes, "")

    def note_prompt_read(self, cost: Cost) -> None:
        """Note that the engine has read a request's prompt, or will not."""
        if cost.is_inspection:
            return
        self._advance_reading()
        self._unread[cost.num_read] -= 1
        if not self._unread[cost.num_read]:
            del self._unread[cost.num_read]

    def note_tokens_read(self, num_tokens: int) -> None:
        """Count prompt tokens that a step of the engine computed, or found in the cache."""
        self._advance_reading()
        if num_tokens > 0:
            self._reading.add(num_tokens)

    def seconds_to_seat(self, client: str = "") -> float:
        """Return the expected seconds until a client's next request runs: the requests that must end first, at the
        present rate. Clients are served round robin.
        """
        num_waiting = self.requests.used - self._num_seats + 1
        if num_waiting <= 0:
            return 0.0
        own = self.requests.held_by[client]
        others = sum(min(held, own + 1) for name, held in self.requests.held_by.items() if name != client)
        return self.requests.seconds_to_return(min(num_waiting, own + others))

    def seconds_to_read(self, num_tokens: int) -> float:
        """Return the expected seconds until a prompt of this length is read. Shorter prompts, and prompts up to twice
        as long, come first; longer ones share the engine with it, which halves the rate.
        """
        self._advance_reading()
        ahead = sum(length * count for length, count in self._unread.items() if length < 2 * num_tokens)
        overtakes = any(length >= 2 * num_tokens for length in self._unread)
        return self._reading.seconds_for(ahead * (2 if overtakes else 1))

    def _check_wait(self, seconds: float) -> None:
        if seconds > self.max_queue_time:
            raise self._refusal(
                "queue_time_exceeded",
                f"At the present load this request would wait about {seconds:.0f} s for its turn; at most "
                f"{self.max_queue_time:g} s are accepted (--max-queue-time).",
                seconds - self.max_queue_time,
            )

    def check_size(
        self, num_tokens: int, num_blocks: int | None = None, client: str = "", *, is_inspection: bool = False
    ) -> None:
        """Raise QueueFull (429) if there is no room for them. `num_blocks` defaults to the blocks that they fill."""
        client = _account(client, is_inspection=is_inspection)
        num_blocks = num_tokens // self._block_size if num_blocks is None else num_blocks
        if not self.tokens.has_room(num_tokens, client):
            raise self._refusal(
                "queue_tokens_full",
                f"The unfinished requests have {self.tokens.used} tokens; with this one's {num_tokens} they would "
                f"exceed the {self.tokens.limit} that are accepted (--max-num-queued-tokens).",
                self.tokens.seconds_until_free(num_tokens),
            )
        if not self.blocks.has_room(num_blocks, client):
            raise self._refusal(
                "queue_blocks_full",
                f"The unfinished requests may need {self.blocks.used} blocks of the KV cache; with this one's "
                f"{num_blocks} they would exceed the {self.blocks.limit:.0f} that are accepted (--max-kv-demand).",
                self.blocks.seconds_until_free(num_blocks),
            )

    def _refusal(self, code: str, message: str, seconds: float) -> QueueFull:
        self.refusals[code] += 1
        return QueueFull(message, code=code, retry_after=retry_after(seconds))

    def _advance_reading(self) -> None:
        self._reading.advance(self._clock(), busy=bool(self._unread))


def _account(client: str, *, is_inspection: bool) -> str:
    return f"{client} (looks)" if is_inspection else client
