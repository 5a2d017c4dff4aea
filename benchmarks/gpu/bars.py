"""The bars of a card: one requirement for each row of the table, in its order."""

from typing import NamedTuple

NUMBERS, SPEED = "numbers", "speed"
PARTS = (NUMBERS, SPEED)
"""The parts of a run: whether numbers are right, and how long things take."""
CROWDS = ("one", "some", "many")
"""Names of `Plan.rows`."""


class Bar(NamedTuple):
    key: str
    part: str
    check: str
    least: float | None = None
    most: float | None = None
    unit: str = "share"
    """The number's unit: share | ratio | error | s, or passed, which is 1 if something passes and 0 if not."""

    @property
    def asked(self) -> str:
        if self.unit == "passed":
            return "passes"
        if self.least is not None:
            return f"at least {self.show(self.least)}"
        assert self.most is not None
        return f"at most {self.show(self.most)}"

    @property
    def is_of_numbers(self) -> bool:
        """Return whether to miss it is an error, not only slow."""
        return self.part == NUMBERS

    def show(self, value: float) -> str:
        match self.unit:
            case "share":
                return f"{value:.0%}"
            case "ratio":
                return f"{value:.2f}"
            case "error":
                return f"{value:.1e}"
            case "s":
                return f"{value:.1f} s"
        return "passed" if value else "failed"

    def is_met(self, value: float) -> bool:
        """Return whether a measured number, which may be no number, is good enough."""
        if self.least is not None:
            return value >= self.least
        assert self.most is not None
        return value <= self.most


def _decode(size: str, name: str, shares: tuple[float, float, float]) -> tuple[Bar, ...]:
    sequences = dict(zip(CROWDS, (1, 32, 256), strict=True))
    return tuple(
        Bar(f"{size} {crowd}", SPEED, f"decode, {name}, {sequences[crowd]} at once: tokens/s of the floor's", share)
        for crowd, share in zip(CROWDS, shares, strict=True)
    )


BARS = (
    Bar("logits", NUMBERS, "logits against transformers, float32: largest error", most=1e-4, unit="error"),
    Bar("graphs", NUMBERS, "answers and patterns with graphs, as by plain torch", 1.0, unit="passed"),
    Bar("kernels", NUMBERS, "answers and patterns without graphs, as by plain torch", 1.0, unit="passed"),
    Bar("bits", NUMBERS, "batch-invariant: the same bits alone and in random batches", 1.0, unit="passed"),
    Bar("gpu tests", NUMBERS, "`pytest -m gpu`", 1.0, unit="passed"),
    Bar("kernel tests", NUMBERS, "`pytest tests/model/kernels/cuda` on the card", 1.0, unit="passed"),
    Bar("memcheck", NUMBERS, "these kernels under compute-sanitizer's memcheck", 1.0, unit="passed"),
    Bar("attention", SPEED, "decode attention alone, 32 x 1,024 keys: share of the bandwidth", 0.70),
    *_decode("small", "1.2B", (0.60, 0.60, 0.45)),
    *_decode("large", "8B", (0.75, 0.70, 0.55)),
    Bar("prefill", SPEED, "prefill of 2,048 tokens, 8B: share of the rate of products", 0.50),
    Bar("one looks", SPEED, "1 of 8 streams captures all layers and heads: tokens/s over without", 0.97, unit="ratio"),
    Bar("all look", SPEED, "all 8 capture them: tokens/s over without", 0.85, unit="ratio"),
    Bar("invariant", SPEED, "batch-invariant: tokens/s of 32 streams over the default's", 0.9, unit="ratio"),
    Bar("start", SPEED, "start of the engine, 1.2B, nothing compiled before", most=15.0, unit="s"),
    Bar("mixed", SPEED, "streams decode while prompts arrive: p99 of a step over its median", most=2.0, unit="ratio"),
)
BY_KEY = {bar.key: bar for bar in BARS}
