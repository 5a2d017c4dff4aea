"""The base class of sinks, which gather the tensors of an answer while a request runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lightwell.model.hooks.hooks import AttentionTap, Read
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.messages.base_task import Stage
from lightwell.server.engine.messages.outputs import Array


class Sink(ABC):
    """Gathers a part of an answer."""

    stage: Stage
    """The part of a step that computes the sink's numbers."""
    problem: str | None = None
    """The error if a captured number cannot be represented in the requested type, or None."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Return the size of the gathered tensors, in bytes."""

    @abstractmethod
    def hooks(self, window: Window) -> Sequence[Read | AttentionTap]:
        """Return the hooks for the sink's rows in this window, if there are any."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the gathered tensors, by their names in the answer."""

    def mark(self) -> Callable[[], None]:
        """Return a function that undoes later additions, for a step that fails. A sink that writes each number to its
        own place has nothing to undo.
        """
        return lambda: None
