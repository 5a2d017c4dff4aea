"""Resolves where a layer, a head or a position is in an answer. There is one rule everywhere: numbers are the
model's own, negative ones count from the model's end, and None is the only one that the answer has.
"""

from collections.abc import Mapping, Sequence

Stacks = Mapping[str, Mapping[str, int]]
"""How many layers and heads each stack has, as the server reports: {"decoder": {"num_layers", "num_heads", ...}}."""


def place_of(name: str, wanted: int | None, present: Sequence[int], total: int | None) -> int:
    """Return the index of a number among those `present`; `total` is how many the model has, or None if that is
    unknown.

    Raises:
        ValueError: not in this answer, or None where there are several.
    """
    if wanted is None:
        if len(present) != 1:
            raise ValueError(f"this answer has {len(present)} {name}s, {list(present)}: name one {name}")
        return 0
    number = own_number(name, wanted, total)
    if number not in present:
        meant = f"{wanted}" if number == wanted else f"{wanted} ({number})"
        raise ValueError(f"{name} is {meant}; this answer has {list(present)}")
    return list(present).index(number)


def places_of(name: str, wanted: int | None, present: Sequence[int], total: int | None) -> list[int]:
    """Return the index of one number as `place_of` does, or of None all indices."""
    return [*range(len(present))] if wanted is None else [place_of(name, wanted, present, total)]


def own_number(name: str, wanted: int, total: int | None) -> int:
    """Return the model's own number of `wanted`, which may count from the end.

    Raises:
        ValueError: it counts from an end that the server did not report, or to before the beginning.
    """
    if wanted >= 0:
        return wanted
    if total is None:
        raise ValueError(
            f"{name} is {wanted}, and the server did not report their number: use a number from the beginning"
        )
    if wanted < -total:
        raise ValueError(f"{name} is {wanted}, and the model has {total}")
    return wanted + total


def total_of(stacks: Stacks, stack: str, kind: str) -> int | None:
    """Return how many "layer"s, "head"s or "kv_head"s a stack has, or None if the server did not report it.

    stack: "encoder" or "decoder"; the only one of a model that has one.
    """
    sizes = stacks.get(stack) if len(stacks) != 1 else next(iter(stacks.values()))
    return None if sizes is None else sizes.get(f"num_{kind}s")
