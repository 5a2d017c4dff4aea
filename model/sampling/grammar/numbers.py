"""Regular expressions of numbers between bounds, with a limited number of digits."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

DIGITS = 15
"""Largest number of digits of a number: a double represents as many exactly, so that no reader rounds over a bound."""
UNBOUNDED = rf"-?(0|[1-9][0-9]{{0,{DIGITS - 1}}})(\.[0-9]{{1,{DIGITS}}})?([eE][+-]?[0-9]{{1,2}})?"
"""Any number."""
_FRACTION = r"(\.[0-9]+)?"


@dataclass
class Bounds:
    """The numbers that number keywords admit."""

    low: Fraction | None = None
    high: Fraction | None = None
    above: bool = False
    """Whether `low` itself is excluded."""
    below: bool = False
    """Whether `high` itself is excluded."""
    steps: list[Fraction] = field(default_factory=list)
    """The values of multipleOf."""

    @classmethod
    def of(cls, schemas: Iterable[Mapping[str, Any]]) -> "Bounds":
        """Return the bounds of schemas that must all hold. In draft 4, true makes a bound exclusive."""
        bounds = cls()
        for schema in schemas:
            for name, exclusive in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")]:
                flag = schema.get(exclusive)
                if name in schema:
                    bounds.limit(name, exact(schema[name]), flag is True)
                if flag is not None and not isinstance(flag, bool):
                    bounds.limit(name, exact(flag), True)
            if "multipleOf" in schema:
                bounds.steps.append(exact(schema["multipleOf"]))
        return bounds

    def limit(self, name: str, value: Fraction, excluded: bool) -> None:
        """Narrow one bound."""
        if name == "minimum" and (self.low is None or value > self.low or (value == self.low and excluded)):
            self.low, self.above = value, excluded
        if name == "maximum" and (self.high is None or value < self.high or (value == self.high and excluded)):
            self.high, self.below = value, excluded

    def admit(self, number: float) -> bool:
        """Return whether the bounds admit a number."""
        value = exact(number)
        low = self.low is None or value > self.low or (value == self.low and not self.above)
        high = self.high is None or value < self.high or (value == self.high and not self.below)
        return low and high and all((value / step).denominator == 1 for step in self.steps)

    def step(self, whole: bool) -> Fraction | None:
        """Return the least common multiple of all steps, with 1 among them for a `whole` number; None without steps."""
        steps = [*self.steps, *([Fraction(1)] if whole else [])]
        if not steps:
            return None
        return Fraction(math.lcm(*[step.numerator for step in steps]), math.gcd(*[step.denominator for step in steps]))

    def on_grid(self, step: Fraction) -> tuple[int, int] | None:
        """Return the least and the greatest admitted multiple of `step`, in steps; None if there is none."""
        low = -self._reach() if self.low is None else self.low
        high = self._reach() if self.high is None else self.high
        first, last = math.ceil(low / step), math.floor(high / step)
        first += self.low is not None and self.above and first * step == low
        last -= self.high is not None and self.below and last * step == high
        return (first, last) if first <= last else None

    def _reach(self) -> Fraction:
        """Return the limit of a side without a bound: a digit more than the bound of the other side."""
        bound = abs(self.low or self.high or Fraction(0))
        return Fraction(10 ** (DIGITS if bound <= 10**DIGITS - 1 else len(str(int(bound))) + 1) - 1)


def exact(number: float) -> Fraction:
    """Return the number of the shortest text of a float: 0.1 is a tenth."""
    return Fraction(number) if isinstance(number, int) else Fraction(Decimal(repr(number)))


def whole_numbers(low: int, high: int) -> str:
    """Return the whole numbers from low to high as a regular expression."""
    parts = []
    if low < 0:
        parts.append(f"-({_from_to(max(1, -high), -low)})")
    if high >= 0:
        parts.append(_from_to(max(0, low), high))
    return "|".join(parts)


def _from_to(low: int, high: int) -> str:
    shortest, longest = len(str(low)), len(str(high))
    if low == 10 ** (shortest - 1) and high == 10**longest - 1 and shortest < longest:
        return f"[1-9][0-9]{{{shortest - 1},{longest - 1}}}"
    if low == 0 and high > 9:
        return f"0|{_from_to(1, high)}"
    parts = []
    while len(str(low)) < len(str(high)):
        end = 10 ** len(str(low)) - 1
        parts.append(_same_length(str(low), str(end)))
        low = end + 1
    parts.append(_same_length(str(low), str(high)))
    return "|".join(parts)


def _same_length(low: str, high: str) -> str:
    if low == high:
        return low
    rest = len(low) - 1
    if low[0] == high[0]:
        return f"{low[0]}({_same_length(low[1:], high[1:])})"
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts.append(f"{first}({_same_length(low[1:], '9' * rest)})")
        first += 1
    if high[1:] != "9" * rest:
        parts.append(f"{last}({_same_length('0' * rest, high[1:])})")
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return "|".join(parts)


def fractions(bounds: Bounds, places: int | None) -> str:
    """Return the numbers within bounds below 10**15, with at most `places` decimals, as a terminal of Lark."""
    digits = rf"/-?[0-9]+(\.[0-9]{{1,{places}}})?/" if places else "/-?[0-9.]+/"
    short = f"/-?[0-9.]{{1,{DIGITS + 1}}}/ & {digits}"
    low, high = bounds.low, bounds.high
    parts = []
    if high is None or high >= 0:
        least, above = (Fraction(0), False) if low is None or low < 0 else (low, bounds.above)
        parts.append(_between("", least, above, high, bounds.below, short))
    if low is None or low < 0:
        least, above = (Fraction(0), True) if high is None or high >= 0 else (-high, bounds.below)
        parts.append(_between("-", least, above, None if low is None else -low, bounds.above, short))
    return " | ".join(parts)


def _between(sign: str, low: Fraction, above: bool, high: Fraction | None, below: bool, short: str) -> str:
    texts = [f"/{sign}({_at_least(_decimal(low), above)})/"]
    if high is not None:
        texts.append(f"/{sign}({_at_most(_decimal(high), below)})/")
    return " & ".join([*texts, short])


def _decimal(value: Fraction) -> tuple[int, str]:
    whole, rest = divmod(value, 1)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return int(whole), digits


def _at_least(bound: tuple[int, str], excluded: bool) -> str:
    whole, digits = bound
    more = f"({_from_to(whole + 1, 10**DIGITS - 1)}){_FRACTION}"
    if digits:
        same = rf"{whole}\.({_digits_from(digits, excluded)})"
    else:
        same = rf"{whole}\.[0-9]*[1-9][0-9]*" if excluded else f"{whole}{_FRACTION}"
    return f"{more}|{same}"


def _digits_from(digits: str, excluded: bool) -> str:
    if not digits:
        return "[0-9]*[1-9][0-9]*" if excluded else "[0-9]*"
    first = int(digits[0])
    same = f"{first}({_digits_from(digits[1:], excluded)})"
    return same if first == 9 else f"{same}|[{first + 1}-9][0-9]*"


def _at_most(bound: tuple[int, str], excluded: bool) -> str:
    whole, digits = bound
    parts = [f"({_from_to(0, whole - 1)}){_FRACTION}"] if whole else []
    if digits:
        parts.append(rf"{whole}(\.({_digits_to(digits, excluded)}))?")
    elif not excluded:
        parts.append(rf"{whole}(\.0+)?")
    return "|".join(parts) or r"[^\s\S]"


def _digits_to(digits: str, excluded: bool) -> str:
    first, rest = int(digits[0]), digits[1:]
    parts = [f"[0-{first - 1}][0-9]*"] if first else []
    if rest:
        parts.append(f"{first}({_digits_to(rest, excluded)})?")
    elif not excluded:
        parts.append(f"{first}0*")
    return "|".join(parts)
