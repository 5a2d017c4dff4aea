"""A clock for objects that are given one: tests with limits of time neither wait nor depend on the machine's speed."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
