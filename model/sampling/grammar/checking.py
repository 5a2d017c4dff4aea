"""Checks of grammars without a model's tokenizer: syntax, and llguidance's limits."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from itertools import zip_longest
from threading import Lock
from typing import Any, ParamSpec, TypeVar, cast

import llguidance
import orjson
from cachetools import LRUCache, cached

from lightwell.model.sampling.grammar.errors import GrammarError

MAX_BYTES = 4_000_000
"""Largest size of a grammar in llguidance's dialect, in bytes."""
STEPS = 8
"""Number of bytes of an answer that a check tries."""
MAX_OPTIONAL = 500
"""Most parts of a terminal or pattern that follow each other and may all be left out: llguidance takes time and memory
in proportion to the square of their number.
"""
TOO_MANY_OPTIONAL = f"more than {MAX_OPTIONAL} consecutive parts are optional"
_results: LRUCache[bytes, Any] = LRUCache(1 << 22, getsizeof=lambda result: 500 + len(repr(result)))
"""Cached results of `remembered` functions, at most 4 million characters in total. A larger result is not cached."""
_lock = Lock()
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
CLASS = r"\[\^?\]?(?:\\.?|[^\]\\])*+(?:\]|\Z)"
"""A class of a pattern. An unclosed class reaches to the end, so that the search for ] runs once, not for each [."""
COUNT = r"\{\d*+,?\d*+\}"
"""A counted repetition of a pattern."""

# An unclosed text, pattern or class reaches to the end of its line, and nothing is read twice: a search holds the
# interpreter's lock.
_ZERO = r"\{\s*+(?:0++\s*+(?:,\s*+\d*+\s*+)?|,\s*+\d*+\s*+)\}"
_OF_PATTERN = re.compile(
    r"(?P<empty>\\[bBAzZ]|[\^$]|\(\?[a-z-]++\))|(?P<open>\((?:\?[a-z-]*+[:=!]|\?P?<\w++>)?+)|(?P<close>\))|(?P<or>\|)"
    rf"|(?P<optional>[?*]|{_ZERO})|(?P<repeat>\+|{COUNT})"
    r"|(?P<one>\\(?:[xupPU]\{[^}\n]*+\}?+|x..|u....|[pP].|.|\Z)"
    r"|\[\^?+\]?+(?:\[:\^?+\w*+:\]|\[[^\[\]\\\n]*+\]|\\.|[^\]\\])*+(?:\]|\Z)|.)",
    re.DOTALL,
)
_TEXT = r'"(?:\\.|[^"\\\n])*+"?+i?+'
_OF_GRAMMAR = re.compile(
    r"(?P<skip>//[^\n]*+|\n|[^\S\n]++|->\s*+\w++|[!:])|(?P<embedded>%\w++[^\S\n]*+(?=\{))|(?P<directive>%\w++)"
    rf"|(?P<pattern>/(?:\\.|[^/\\\n])++/?+[a-z]*+)|(?P<empty>\"\"(?!i?\w))|(?P<one>{_TEXT}(?:\s*+\.\.\s*+{_TEXT})?+|<[^>\n]*+>?+|@\w++)"
    rf"|(?P<name>\w++)|(?P<open>[(\[])|(?P<close>\))|(?P<absent>\])|(?P<or>[|&])"
    rf"|(?P<optional>[?*]|~\s*+0++(?!\d)|{_ZERO})|(?P<repeat>\+|~\s*+\d++|\.\.\s*+\d++|{COUNT})|(?P<other>.)",
)
_DEFINES = re.compile(r"^[^\S\n]*+[?!]*+(\w++)(?:\[[^\]\n]*+\])?+(?:\.-?\d++)?+[^\S\n]*+:(?!:)", re.MULTILINE)

END = 256
"""The byte tokenizer's token for the end of a text."""
_REASONS = {
    "nsatisfiable": "",
    "look-around": "look-ahead and look-behind are not supported",
    "ackreference": "references to groups are not supported",
    "unclosed group": "a bracket ( is not closed",
    "unopened group": "a bracket ) has no opening bracket",
    "repetition": "a repetition repeats nothing, or its count is wrong",
    "character class|range bound": "a character class [...] is not closed, or a range in it is wrong",
    "escape|literal|nicode": "an escape \\ is wrong, or not supported",
    "unknown name": "a rule or terminal is used but not defined",
    "JSON schema": "the schema in %json is wrong, or not supported",
    "too (big|large|many|complex)|limit|exceed|fuel": "it is too large",
    "Expected token|lexer error": "the syntax is wrong",
}
"""Parts of llguidance's messages, which are for programmers, and their plain words. "" means: no text matches."""


class _Bytes:
    """A tokenizer with the single bytes as tokens, and with the attributes that llguidance reads."""

    is_tokenizer_wrapper = True
    eos_token_id = END
    bos_token_id = None

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(END)] + [b"<end>"]
        self.special_token_ids = [END]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> llguidance.LLTokenizer:
    """Return llguidance's tokenizer with the single bytes as tokens."""
    return llguidance.LLTokenizer(cast(Any, _Bytes()), n_vocab=END + 1, eos_token=END)


def check(grammar: str) -> None:
    """Raise GrammarError for a grammar that llguidance refuses, or that exceeds its limits.

    The first steps of an answer are tried too, since some limits appear only there. The largest accepted grammars take
    up to two seconds, without the interpreter's lock.
    """
    if len(grammar) > MAX_BYTES:
        raise GrammarError("", f"the grammar has more than {MAX_BYTES} bytes")
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
        if wrong:
            raise _refused(messages[0])
        return  # the error is about special tokens, which the byte tokenizer lacks
    if _admits_nothing(matcher):
        raise GrammarError("", "no text matches it")
    for _ in range(STEPS):
        allowed = b"" if matcher.is_error() or matcher.is_stopped() else matcher.compute_logit_bias()[: END + 1]
        token = next((token for token, bias in enumerate(allowed) if bias), END)
        if token == END:
            break
        matcher.consume_token(token)
    if matcher.is_error():
        raise _refused(matcher.get_error())


def has_too_many_optional(grammar: str) -> bool:
    """Return whether a terminal or a rule of llguidance's Lark has more than `MAX_OPTIONAL` optional parts in a row.
    The parts of other rules that a rule names are not counted: they are no part of a terminal.
    """
    heads = list(_DEFINES.finditer(grammar))
    bodies: dict[str, list[tuple[str, str]]] = {}
    for head, following in zip_longest(heads, heads[1:]):
        end = len(grammar) if following is None else following.start()
        bodies.setdefault(head[1], []).extend(_tokens_of(grammar, head.end(), end))
    terminals = {name for name in bodies if name.strip("_")[:1].isupper()}
    named = {name: {text for kind, text in bodies[name] if kind == "name"} & terminals for name in terminals}
    try:
        order = list(TopologicalSorter(named).static_order())
    except CycleError:
        return False  # it is refused for that
    known: dict[str, _Part] = {}
    for name in order:
        known[name] = _whole(bodies[name], known)
    parts = [*known.values(), *(_whole(bodies[name], known) for name in bodies.keys() - terminals)]
    return any(run > MAX_OPTIONAL for _, run in parts)


def _tokens_of(grammar: str, begin: int, end: int) -> Iterator[tuple[str, str]]:
    while begin < end and (match := _OF_GRAMMAR.match(grammar, begin, end)):
        begin = match.end()
        if match.lastgroup == "embedded":  # a schema in JSON
            with suppress(ValueError, RecursionError):
                begin = json.JSONDecoder().raw_decode(grammar, begin)[1]
        yield str(match.lastgroup), match.group()


_Part = tuple[bool, int]
"""A pair: whether a part is optional, and the length of its longest row of optional parts."""


def _whole(tokens: Iterable[tuple[str, str]], known: Mapping[str, _Part]) -> _Part:
    """Return the part that the tokens of a pattern or of a terminal are. `known` has the named parts."""
    alternatives: list[list[list[_Part]]] = [[[]]]
    for kind, text in tokens:
        sequence = alternatives[-1][-1]
        if kind == "open":
            alternatives.append([[]])
        elif kind == "or":
            alternatives[-1].append([])
        elif kind in ("close", "absent") and len(alternatives) > 1:
            is_optional, run = _either(alternatives.pop())
            alternatives[-1][-1].append((is_optional or kind == "absent", run))
        elif kind == "optional" and sequence:
            sequence[-1] = True, max(1, sequence[-1][1])
        elif kind == "pattern":
            inside, _, flags = text[1:].rpartition("/") if text.rfind("/") > 0 else (text[1:], "", "")
            inside = re.sub(r"\s++", "", inside) if "x" in flags else inside
            pieces = _OF_PATTERN.finditer(inside)
            sequence.append(_whole([(str(piece.lastgroup), piece.group()) for piece in pieces], {}))
        elif kind in ("one", "name", "empty", "embedded"):
            sequence.append(known.get(text, (kind == "empty", 0)))
    return _either(alternatives[0])


def _either(alternatives: Sequence[Sequence[_Part]]) -> _Part:
    longest = 0
    for sequence in alternatives:
        row = 0
        for is_optional, run in sequence:
            row = row + max(1, run) if is_optional else 0
            longest = max(longest, row, run)
    return any(all(is_optional for is_optional, _ in sequence) for sequence in alternatives), longest


def remembered(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep the last results of a function, by the JSON of the arguments; all functions share `_results`."""

    def key(*args: Arguments.args, **kwargs: Arguments.kwargs) -> bytes:
        try:
            written = orjson.dumps([function.__qualname__, args, kwargs])
        except TypeError:  # a whole number of more than 64 bits
            written = repr((function.__qualname__, args, kwargs)).encode()
        return sha256(written).digest()

    return cast(Callable[Arguments, Result], cached(_results, key, _lock)(function))


def kept(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
    """Return the result of a `remembered` function if it is kept, or None."""
    cache = cast(Any, function)
    with cache.cache_lock:
        return cast(Result | None, cache.cache.get(cache.cache_key(*args, **kwargs)))


@remembered
def why_refused(grammar: str) -> str | None:
    """Return why llguidance refuses a grammar: "" if it admits no text, None if llguidance accepts it."""
    if has_too_many_optional(grammar):
        return TOO_MANY_OPTIONAL
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if not matcher.is_error():
        return "" if _admits_nothing(matcher) else None
    return reason_of(matcher.get_error())


def _admits_nothing(matcher: llguidance.LLMatcher) -> bool:
    """Return whether no text is the beginning of an answer."""
    return not matcher.is_accepting() and (matcher.is_stopped() or not any(matcher.compute_logit_bias()[:END]))


def reason_of(message: str) -> str:
    """Return the reason in llguidance's message in plain words."""
    lines = message.splitlines() or [""]
    problem = next((line for line in lines if line.startswith("error:")), re.sub('".*"', "", lines[0]))
    return next((told for part, told in _REASONS.items() if re.search(part, problem)), "it is wrong, or not supported")


def _refused(message: str) -> GrammarError:
    place = re.match(r"(?:at )?(\d+)\(\d+\)", message)  # its first line is a header of ours
    line = f"line {int(place[1]) - 1}: " if place else ""
    return GrammarError("", line + (reason_of(message) or "no text matches it"))
