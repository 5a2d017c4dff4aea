"""Names what every reader of a checkpoint shares: the built-in model's folder, and the error for a model that cannot be
loaded. It never imports torch.
"""

from pathlib import Path

PACKAGED = Path(__file__).parent.parent / "fables"
"""The folder of the built-in model, shipped inside the package."""
GGUF_NAME = "model.gguf"
"""The weight file of a folder that a GGUF file was turned into (`model.checkpoint.gguf.folder`)."""


class ModelLoadError(ValueError):
    """The model cannot be loaded. The message is one line that names the value at fault and what is accepted."""


def is_failure(error: BaseException) -> bool:
    """Return whether an error is a failure of work and not an exit. A panic in Rust is one, but it is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, or the error's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
