"""Settings of the scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step.

    Raises ValueError when a limit is below 1, or the token budget cannot give each sequence its token.
    """

    max_num_seqs: int = 64
    """Most running sequences."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    max_capture_tokens: int | None = None
    """Most tokens of that budget for inspection requests while text is generated; None means no limit."""
    enable_prefix_caching: bool = True
    takes_forced: bool = True
    """True: one step computes all tokens that a grammar forces in a row. False: a step for each."""
    rotary_switch: int | None = None
    """Longest text, in tokens, with the rotary tables of short texts; also the first row of the tables of longer ones.
    None means one table for all texts.
    """

    def rotary_start(self, num_tokens: int) -> int:
        """Return the row of the rotary tables for position 0 of a text with this number of tokens."""
        return 0 if self.rotary_switch is None or num_tokens <= self.rotary_switch else self.rotary_switch

    def __post_init__(self) -> None:
        if self.max_capture_tokens is not None and self.max_capture_tokens < 1:
            raise ValueError(f"max_capture_tokens is {self.max_capture_tokens}; at least 1 is needed")
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; at least 1 is needed")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence gets a token in every step"
            )
