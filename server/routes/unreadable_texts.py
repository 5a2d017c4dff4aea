"""Errors about texts on which the model's tokenizer fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from model.tokenization.tokenizer import UnreadableText
from server.http.errors import BadRequest


@contextmanager
def naming(field: str | None) -> Iterator[None]:
    """Raise BadRequest, which names the field, instead of UnreadableText. None: the field is not known."""
    try:
        yield
    except UnreadableText as error:
        place = field or "A text of the body"
        raise BadRequest(f"{place}: {error}; another text is accepted.", param=field, code="unreadable_text") from None
