"""The result of one step, by request."""

from dataclasses import dataclass, field

from lightwell.server.engine.messages.outputs import Array, Failure, TokenLogprobs


@dataclass(slots=True)
class StepResult:
    """Chosen tokens and the attention rows that chose them, by uid: the drafts that are right, and one token more."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    rows: dict[int, list[dict[str, Array]]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    """Failures of requests, which get nothing else from this step."""
    attention_seconds: float = 0.0

    def add(self, other: "StepResult") -> None:
        """Add the result of another part of the same step."""
        self.tokens |= other.tokens
        self.logprobs |= other.logprobs
        self.rows |= other.rows
        self.failures |= other.failures
        self.attention_seconds += other.attention_seconds
