"""What every sink has: a place where some numbers of an answer gather while a request runs.

It knows neither requests nor what the numbers mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from model.hooks.hooks import AttentionTap, Read
from server.engine.base_task import Stage
from server.engine.captures.window import Window
from server.engine.outputs import Array


class Sink(ABC):
    """Gathers a part of an answer."""

    stage: Stage
    """The part of a step in which the sink's numbers come."""
    problem: str | None = None
    """The error if a captured number cannot be represented in the requested type, or None."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Return the memory it holds, in bytes."""

    @abstractmethod
    def hooks(self, window: Window) -> Sequence[Read | AttentionTap]:
        """Return what the network is to hand out of this window, nothing if it holds no row for this sink."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return what was gathered, by the names of the answer."""

    def mark(self) -> Callable[[], None]:
        """Return a function that takes back what is gathered from now on, should the step fail. A sink that writes each
        number where it belongs, however often, has nothing to take back.
        """
        return lambda: None
