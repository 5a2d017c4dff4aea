"""Rules of the contents of objects and arrays: their properties and items, in order and in number."""

from collections.abc import Sequence

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.rules import Rules, Sequence_, Symbol

MAX_ITEMS = 1000
"""Largest number of items or properties that is counted; a schema's larger maximum is lowered to it."""

MAX_OPTIONAL = 500
"""Largest number of optional properties or listed items: llguidance keeps three parser items for each, and at most
2000.
"""


def array(
    rules: Rules,
    path: str,
    comma: Sequence_,
    space: Sequence_,
    first: Sequence[Sequence_],
    more: Sequence_ | None,
    least: int,
    most: int | None,
) -> Sequence_ | None:
    """Return an array of `first` items, each of its own kind, then any of `more`; None if no length is possible."""
    open_, close = (Symbol('"["'), *space), (*space, Symbol('"]"'))
    if least > MAX_ITEMS:
        raise GrammarError(path, f"an array that must have more than {MAX_ITEMS} items is not supported")
    most = MAX_ITEMS if most is not None and most > MAX_ITEMS else most
    if more is None:
        most = len(first) if most is None else min(most, len(first))
    if most is not None and least > most:
        return None
    own = list(first if most is None else first[:most])
    tail: Sequence_ = ()
    if more is not None and (most is None or most > len(own)):
        own = own or [more]
        following = rules.one_of(path, [(*comma, *more)])
        tail = _repeated(following, max(0, least - len(own)), None if most is None else most - len(own))
    for number in reversed(range(len(own))):
        entry = (*comma, *own[number]) if number else own[number]
        tail = (*entry, *tail)
        if number >= least:  # an optional item is left out with all items after it
            tail = (Symbol(rules.one_of(path, [tail]).text, True, "{0,1}"),)
    return (*open_, *tail, *close)


def _repeated(symbol: Symbol, least: int, most: int | None) -> Sequence_:
    if most == 0:
        return ()
    return (Symbol(symbol.text, symbol.is_rule, f"{{{least},{'' if most is None else most}}}"),)


def members(
    rules: Rules,
    path: str,
    comma: Sequence_,
    named: Sequence[tuple[Sequence_, bool]],
    others: Sequence[Sequence_],
    least: int,
    most: int | None,
) -> Sequence_:
    """Return an object's content: `named` members in order, each with True if it is required, then any of `others`; or
    the content of an array whose items are unique.

    JSON permits a name twice, and only the last counts, so at most one of `others` is counted for `least`.
    """
    if len(named) - sum(needed for _, needed in named) > MAX_OPTIONAL:
        raise GrammarError(path, f"at most {MAX_OPTIONAL} properties, or items of uniqueItems, may be optional")
    required = sum(needed for _, needed in named)
    if most is not None and (most >= len(named) + MAX_ITEMS or (not others and most >= len(named))):
        most = None
    least = 0 if least <= required else least
    if least > MAX_ITEMS:
        raise GrammarError(path, f"an object that must have more than {MAX_ITEMS} properties is not supported")
    cap = max(1, least, most or 0)
    after: dict[int, Sequence_] = {}
    """The rest of the object, by the number of members before it; required members need no rule of their own."""
    entry = rules.one_of(path, list(others)) if others else None
    following = rules.one_of(path, [(*comma, entry)]) if entry else None
    for count in range(min(required, cap), min(len(named), cap) + 1):
        missing = max(0, least - count)
        room = None if most is None else most - count
        endings: list[Sequence_] = [()] if missing == 0 else []
        if entry and following and missing <= 1 and (room is None or room > 0):
            if count:
                endings = [_repeated(following, missing, room)]
            else:
                endings.append((entry, *_repeated(following, 0, None if room is None else room - 1)))
        after[count] = (rules.one_of(path, endings),)
    fewest = required
    for number, (member, needed) in reversed(list(enumerate(named))):
        fewest -= needed
        before: dict[int, Sequence_] = {}
        for count in range(min(fewest, cap), min(number, cap) + 1):
            taken = (*(comma if count else ()), *member, *after[min(count + 1, cap)])
            if most is not None and count >= most:
                before[count] = (rules.one_of(path, [] if needed else [after[count]]),)
            elif needed and min(number, cap) == min(fewest, cap) and number % 100 != 99:  # else its length is quadratic
                before[count] = taken
            else:
                before[count] = (rules.one_of(path, [taken] if needed else [taken, after[count]]),)
        after = before
    return after[0]
