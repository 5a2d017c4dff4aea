"""Many inputs in several requests, and their answers as one, with a progress bar."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from lightwell_client import LightwellError
from lightwell_client._result import Result
from lightwell_client._results import Usage

T = TypeVar("T")

_INPUTS, _REQUESTS = 64, 16
"""Largest number of inputs in a request, and of concurrent requests. A step computes inputs of several requests."""
_SHOWN_FROM = 11
"""Smallest number of inputs for which a progress bar is shown."""


async def in_parts(
    count: int, ask: Callable[[slice], Awaitable[T]], list_name: str, use_tqdm: bool, most: int | None = None
) -> T:
    """Return the answer to `count` inputs, after asking for some of them at a time.

    ask: sends a request with a slice of the inputs. list_name: the list of the answer, with an entry for each input;
        entries have the input's number as `index`. most: best entries to keep, by score, if the list is sorted by it.

    Raises LightwellError, with a note of the inputs; the first failure ends all.
    """
    places = asyncio.Semaphore(_REQUESTS)
    with progress_bar(count, use_tqdm) as advance:

        async def part(first: int) -> T:
            chosen = slice(first, min(first + _INPUTS, count))
            try:
                async with places:
                    answer = await ask(chosen)
            except LightwellError as error:
                if count > _INPUTS:
                    error.add_note(f"It is the error of inputs {chosen.start} to {chosen.stop - 1} of {count}.")
                raise
            advance(chosen.stop - chosen.start)
            return answer

        answers: list[Any] = await all_or_none([part(first) for first in range(0, max(count, 1), _INPUTS)])
    whole: T = answers[0] if len(answers) == 1 else _joined(answers, list_name, most)
    return whole


def _joined(answers: Sequence[Any], list_name: str, most: int | None) -> Any:
    entries = [
        _with(entry, index=number * _INPUTS + entry.index)
        for number, answer in enumerate(answers)
        for entry in getattr(answer, list_name)
    ]
    if most is not None:
        entries = sorted(entries, key=lambda entry: (-entry.relevance_score, entry.index))[: most or None]
    kept = type(getattr(answers[0], list_name))(entries)
    return _with(answers[0], **{list_name: kept}, usage=_total([answer.usage for answer in answers]))


async def all_or_none(works: Sequence[Awaitable[T]]) -> list[T]:
    """Return the results in their order. The first failure, or the end of this call, ends all."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def progress_bar(total: int, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves a progress bar on stderr; for few inputs there is none."""
    from tqdm.auto import tqdm

    if not is_wanted or total < _SHOWN_FROM:
        yield lambda count: None
        return
    with contextlib.suppress(OSError), tqdm(total=total, desc="prompts", unit="") as bar:

        def advance(count: int) -> None:
            try:
                bar.update(count)
            except OSError:  # the reader has left
                bar.disable = True

        yield advance


def _total(usages: Sequence[Usage | None]) -> Usage:
    counts = [usage.model_dump() for usage in usages if usage is not None]
    return Usage(**{name: sum(each[name] for each in counts) for name in Usage.model_fields})


def _with(value: Any, **fields: Any) -> Any:
    """Return a copy of a result with other values of these fields."""
    return value.model_copy(update=fields) if isinstance(value, Result) else dataclasses.replace(value, **fields)
