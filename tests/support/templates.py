"""Chat templates of published models, which llama.cpp ships and `tests/tools/install.sh chat-templates` downloads."""

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / ".tools" / "chat-templates"


def published_templates() -> list[Path]:
    """Return the files of the templates, none if they are not installed."""
    return sorted(_FOLDER.glob("*.jinja"))
