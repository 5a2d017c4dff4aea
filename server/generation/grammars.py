"""Converts the constraint of an answer to a grammar, in a thread, or refuses it with its path in the body."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import orjson

from lightwell.model.sampling.grammar.checking import kept, remembered
from lightwell.model.sampling.grammar.constraint import grammar_text
from lightwell.model.sampling.grammar.deep_stack import deep_stacks
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.json_reader import check_json_text
from lightwell.server.schemas.structured_outputs import Constraint

_SWITCH_SECONDS = 0.0005
"""Seconds for which a thread may keep the interpreter's lock while another waits for it. Next to a large schema, and
with Python's default of 5 ms, a request that takes the lock several times waited up to 76 ms.
"""
_grammar_text = remembered(grammar_text)

Result = TypeVar("Result")


async def in_grammar_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function that reads or makes grammars, in the thread for that."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), function, *args)


@cache
def _thread() -> ThreadPoolExecutor:
    """Start the thread that reads schemas one after the other: a hostile one takes long, and the threads of all other
    work must stay free.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    executor = ThreadPoolExecutor(1, "grammars")
    with deep_stacks():
        executor.submit(int)  # starts the thread
    return executor


async def read_grammar(model: ServedModel, constraint: Constraint | None) -> str | None:
    """Return the grammar of a constraint, as llguidance reads it, or None for free text.

    Raises BadRequest, with the path, for a schema or pattern that is wrong, or that this server cannot honour.
    """
    if constraint is None:
        return None
    value = constraint.value
    if isinstance(value, str) and constraint.kind in ("json", "structural_tag"):
        value = _parsed(constraint, value)
    args = (constraint.kind, value, constraint.whitespace_pattern)
    try:
        return kept(_grammar_text, *args) or await in_grammar_thread(_grammar_text, *args)
    except GrammarError as error:
        model.metrics.grammars_refused.inc()
        place = f"{constraint.field}{error.path}"
        raise BadRequest(f"{place}: {error.message}.", param=place, code="grammar_refused") from None


def _parsed(constraint: Constraint, text: str) -> Any:
    """Return the JSON of a field that takes its text too. Raises BadRequest if it is none."""
    check_json_text(text, constraint.field)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"{constraint.field}: the text is not valid JSON (at character {error.pos}); an object, or the JSON text "
            "of one, is accepted.",
            param=constraint.field,
        ) from None
