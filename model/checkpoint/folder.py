"""Names shared by all readers of checkpoints: the built-in model's folder and the error ModelLoadError. No torch."""

from pathlib import Path

PACKAGED = Path(__file__).parent.parent / "fables"
"""The folder of the built-in model, shipped inside the package."""
GGUF_NAME = "model.gguf"
"""The weight file of a folder made of a GGUF file (`model.checkpoint.gguf.folder`)."""


class ModelLoadError(ValueError):
    """The model cannot be loaded. The message is one line with the rejected value and the accepted ones."""


def is_failure(error: BaseException) -> bool:
    """Return whether an error is a failure and not an exit. A panic in Rust is a failure, but no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, or its class name without a message."""
    return " ".join(str(error).split()) or type(error).__name__
