"""Decides how much of a text is tokenised: a token takes far more time and memory than its text, and of a text that is
far longer than the context most tokens would be thrown away. Independent of prompts.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from lightwell.model.tokenization.tokenizer import Tokenizer, UnreadableText
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest

MIN_TEXT_LIMIT = 1 << 17
"""Bytes of a text that are accepted for any model: tokenising takes about a microsecond and 300 bytes a token, which
may be a single byte.
"""
MAX_TOKEN_CHARACTERS = 32
"""Most characters that a text has for each of its tokens, unless it is a run of blanks."""
_COUNTED_BYTES = 8
"""Bytes for each token of the context of a text that is tokenised as a whole."""
_FIRST_PART, _NEXT_PART = 8, 4
"""Characters for each wanted token of the first part of a long text that is tokenised, and how much longer the next
part is if that has fewer tokens.
"""
_GROUP = 256
"""Most inputs that are tokenised together."""
_GROUP_SIZE = 250_000
"""Most bytes or characters of them, unless one has more: a thread tokenises as many in some tenths of a second."""
_CUT_TOKENS = 64
"""Tokens at the end of a cut part that may differ from the tokens of the whole text."""
CUT_ADVICE = "Set truncate to cut it."

T = TypeVar("T")
Keep = Literal["start", "end"]
"""Which part of a text is kept when it is cut."""
Cut = Keep | Literal["all"] | None
"""The part of a text over the context that is read. None refuses such a text, and "all" counts its tokens."""


def bounded(model: ServedModel, text: str, field: str, keep: Cut = None) -> str:
    """Return a text that is not far over any context, or the end of it that `keep` names. Raises BadRequest."""
    limit = max(MIN_TEXT_LIMIT, (_COUNTED_BYTES if keep == "all" else MAX_TOKEN_CHARACTERS) * model.context_limit)
    if keep == "start":
        return text[:limit]
    if keep == "end":
        return text[-limit:]
    size = size_of(text)
    if size > limit:
        raise BadRequest(
            f"{field}: the text has {size} bytes; at most {limit} bytes and {model.context_limit} tokens are accepted.",
            param=field,
            code="context_length_exceeded",
        )
    return text


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8, which its tokens do not outnumber."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def part_for(tokenizer: Tokenizer, text: str, num_tokens: int, keep: Keep) -> str:
    """Return the beginning or the end of a text that has some more than `num_tokens` tokens, or a whole text that has
    fewer. Cut to `num_tokens` tokens, both are the same.
    """
    wanted = num_tokens + _CUT_TOKENS
    size = _FIRST_PART * wanted
    while size < len(text):
        part = text[:size] if keep == "start" else text[-size:]
        (encoding,) = tokenizer.encode_batch([part], add_special_tokens=False)
        if len(encoding.ids) >= wanted:
            return part[: encoding.offsets[wanted - 1][1]] if keep == "start" else part[encoding.offsets[-wanted][0] :]
        size *= _NEXT_PART
    return text


async def read_part(model: ServedModel, text: str, field: str, keep: Cut) -> str:
    """Return the part of a text that is tokenised. Raises BadRequest for a text that is far over the context."""
    limit = model.context_limit + 1
    text = bounded(model, text, field, keep)
    if keep == "all" or len(text) <= _FIRST_PART * limit:
        return text
    part = await asyncio.to_thread(part_for, model.tokenizer, text, limit, keep or "start")
    if keep is None and len(part) < len(text):
        raise PromptTooLong(f"more than {model.context_limit}", model.context_limit, field, "")
    return part


def groups_of(inputs: Sequence[T], size: Callable[[T], int]) -> Iterator[tuple[int, Sequence[T]]]:
    """Yield the inputs in groups, each with the number of its first input. `size` returns the size of one input."""
    begin = total = 0
    for i, each in enumerate(inputs):
        if i > begin and (i - begin == _GROUP or total + size(each) > _GROUP_SIZE):
            yield begin, inputs[begin:i]
            begin, total = i, 0
        total += size(each)
    yield begin, inputs[begin:]


class PromptTooLong(BadRequest):
    """The error of a prompt that is too long."""

    def __init__(self, length: int | str, limit: int, field: str, rest: str) -> None:
        """Make the error of a prompt of `length` tokens; `rest` follows the accepted number."""
        super().__init__("", param=field, code="context_length_exceeded")
        self._problem = f"{length} tokens; at most {limit} are accepted{rest}."
        self._is_reworded = False
        self._write("the prompt has", CUT_ADVICE)

    def reword(self, prompt_has: str, cut_advice: str) -> None:
        """Write the message with these words before the length, and this advice at the end, unless that was done."""
        if not self._is_reworded:
            self._is_reworded = True
            self._write(prompt_has, cut_advice)

    def _write(self, prompt_has: str, cut_advice: str) -> None:
        self.message = f"{self.param}: {prompt_has} {self._problem} {cut_advice}".rstrip()


@contextmanager
def naming(field: str | None) -> Iterator[None]:
    """Raise BadRequest, which names the field, instead of UnreadableText. None: the field is not known."""
    try:
        yield
    except UnreadableText as error:
        place = field or "A text of the body"
        raise BadRequest(f"{place}: {error}; another text is accepted.", param=field, code="unreadable_text") from None
