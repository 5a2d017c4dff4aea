"""Lightwell: an inference server that runs a trained transformer and lets you look inside while it serves.

In a checkout `server` and `model` are links to the folders of the same names, so that an editable installation and the
checkers of types find them where a wheel has them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightwell.server.library.llm import LLM, AsyncLLM, SamplingParams

__all__ = ["LLM", "AsyncLLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Return a class of the library, which is imported at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightwell.server.library import llm

    return getattr(llm, name)
