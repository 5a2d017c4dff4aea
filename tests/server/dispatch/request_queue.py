"""A queue of requests at the admission, with a clock that the test advances."""

import pytest

from lightwell.server.dispatch.admission import Admission, Cost, ResourceBudget
from lightwell.server.http.errors import QueueFull
from tests.support.clock import Clock


class Queue:
    """Requests of one size through an admission, first come, first served."""

    def __init__(self, **limits: float) -> None:
        self.clock = Clock()
        defaults: dict[str, float] = {"max_requests": 1 << 20, "max_tokens": 1 << 40, "max_capture_bytes": 1 << 40}
        self.admission = Admission(**(defaults | limits), clock=self.clock)
        self.held: list[tuple[Cost, str]] = []
        self.reads_at_once = True

    def come(
        self, tokens: int = 10, client: str = "", capture_bytes: int = 0, prompt: int = 5, num_requests: int = 1
    ) -> None:
        cost = self.admission.cost(prompt, 0, tokens - prompt, capture_bytes)
        for _ in range(num_requests):
            self.admission.admit(cost, client)
            if self.reads_at_once:
                self.admission.note_prompt_read(cost)
            self.held.append((cost, client))

    def refused(self, tokens: int = 10, client: str = "", capture_bytes: int = 0, prompt: int = 5) -> QueueFull:
        before = [budget.used for budget in self.budgets]
        with pytest.raises(QueueFull) as caught:
            self.come(tokens, client, capture_bytes, prompt)
        assert [budget.used for budget in self.budgets] == before, "what was refused is counted"
        assert caught.value.retry_after is not None
        return caught.value

    @property
    def budgets(self) -> list[ResourceBudget]:
        admission = self.admission
        return [admission.requests, admission.tokens, admission.blocks, admission.capture]

    def end(self, seconds: float = 0.0) -> None:
        """Advance the clock by the given seconds, and end the oldest request."""
        self.clock.now += seconds
        cost, client = self.held.pop(0)
        self.admission.release(cost, client, was_read=self.reads_at_once)
        self.admission.release_capture(cost.capture_bytes)

    def flow(self, num_requests: int, seconds_each: float) -> None:
        """Submit and end `num_requests` requests, one after the other; the length of the queue does not change."""
        for _ in range(num_requests):
            self.end(seconds_each)
            self.come()
