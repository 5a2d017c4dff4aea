"""Grammars of patterns, choices and users' grammars in llguidance's dialect of Lark."""

import re
from collections.abc import Sequence

from lightwell.model.sampling.grammar.checking import CLASS, COUNT, why_refused
from lightwell.model.sampling.grammar.deep_stack import check_nesting
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.gbnf import MAX_BYTES, gbnf_grammar
from lightwell.model.sampling.grammar.places import is_text, shown
from lightwell.model.sampling.grammar.strings import slashed
from lightwell.model.tokenization.chat_formats.lark import HEADER, quoted

MAX_CHOICES = 10_000
"""Largest number of choices."""
MAX_PATTERN = 10_000
"""Largest number of characters of a pattern."""
MAX_COUNTED = 100_000
"""Largest product of the counts of nested repetitions in a pattern."""


def regex_grammar(pattern: str) -> str:
    """Return the grammar of the texts that match a pattern from end to end."""
    if len(pattern) > MAX_PATTERN or not is_text(pattern):
        raise GrammarError("", f"a pattern may have at most {MAX_PATTERN} characters, all of them Unicode")
    check_counts(pattern)
    if not pattern:
        return HEADER + 'start: ""\n'
    grammar = f"{HEADER}start: T\nT: /(?:{slashed(pattern)})/\n"
    error = why_refused(grammar)
    if error:
        raise GrammarError("", f"the pattern is not supported: {error}")
    return grammar


def check_counts(pattern: str) -> None:
    """Raise GrammarError for nested repetitions if their automaton would have too many states."""
    product, stack, largest = 1, [], 1
    for piece in re.findall(rf"\\.|{CLASS}|{COUNT}|.", pattern, re.DOTALL):
        if piece == "(":
            stack.append(largest)
            largest = 1
        elif piece == ")":
            inner, largest = largest, stack.pop() if stack else 1
            product = inner
        elif re.fullmatch(COUNT, piece):
            product *= max([1, *(int(number[:7]) for number in re.findall(r"[1-9]\d*", piece))])
            largest = max(largest, product)
            if product > MAX_COUNTED:
                raise GrammarError(
                    "", f"repetitions of at most {MAX_COUNTED} are accepted; nested repetitions are multiplied"
                )
            continue
        else:
            product = 1
        largest = max(largest, product)


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of exactly these texts."""
    if not choices or len(choices) > MAX_CHOICES:
        raise GrammarError("", f"1 to {MAX_CHOICES} choices are accepted (got {len(choices)})")
    for number, choice in enumerate(choices):
        if not choice or not is_text(choice):
            raise GrammarError(
                f"[{number}]", f"a choice must be a text of at least one character (got {shown(choice)})"
            )
    if sum(len(choice.encode()) for choice in choices) > MAX_BYTES:
        raise GrammarError("", f"all choices together may have at most {MAX_BYTES} bytes")
    return f"{HEADER}start: T\nT: " + " | ".join(quoted(choice) for choice in choices) + "\n"


def lark_or_ebnf_grammar(text: str) -> str:
    """Return llguidance's grammar of a grammar in EBNF (`root ::= ...`) or in Lark (`start: ...`)."""
    if len(text.encode(errors="replace")) > MAX_BYTES or not is_text(text):
        raise GrammarError("", f"a grammar may have at most {MAX_BYTES} bytes of valid Unicode")
    # Python's search holds the interpreter's lock, so its time must be linear in the length of the text.
    if re.search(r"^[^\S\n]*[A-Za-z0-9_-]+\s*::=", text, re.MULTILINE):
        return gbnf_grammar(text)
    setting = re.search(r"\[[^\[\]\"/]*\b(temperature|max_tokens|stop)\s*=", text)
    if setting:
        line = text.count("\n", 0, setting.start()) + 1
        raise GrammarError(
            "", f"line {line}: {setting[1]} is not supported in a grammar; set it as a field of the request"
        )
    if not re.search(r"^[^\S\n]*start\b", text, re.MULTILINE):
        raise GrammarError("", "a grammar must have a rule root ::= ... (EBNF) or start: ... (Lark)")
    check_nesting(sum(map(text.count, "\n([")))  # each rule has a line of its own
    return HEADER + text + "\n"
