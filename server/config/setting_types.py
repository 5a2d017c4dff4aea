"""Types of settings: how each reads its value from text, and the accepted values."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from lightwell.server.config.devices import Devices

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_HOST = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\]"
_URL = re.compile(rf"https?://([!-.0-~]+@)?(?:{_HOST})(?::(\d{{1,5}}))?(/[!-~]*)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class SettingType:
    """How the text of a setting becomes its value. `parse` raises ValueError with the accepted values."""

    parse: Callable[[str], Any]
    metavar: str
    is_flag: bool = False
    is_list: bool = False
    is_secret: bool = False
    """The value is never shown, not even when it is wrong."""

    def read(self, raw: str | Sequence[str] | Literal[True]) -> Any:
        """Read a given value: text, the texts of a repeated flag, or True for a switch that is on.

        Raises ValueError with the value, unless it is a secret, and the accepted values.
        """
        if raw is True:
            return True
        if not isinstance(raw, str):  # argparse of Python 3.11 reads `--name=--` as an empty list
            raw = ["--" if repr(each) == "[]" else each for each in raw] or "--"
        try:
            if re.search("[\ud800-\udfff]", "".join(raw)):  # Python's form of bytes that are not UTF-8
                raise ValueError("text in UTF-8 is accepted")
            if self.is_list and not isinstance(raw, str):
                return tuple(value for text in raw for value in self.parse(text))
            return self.parse(cast("str", raw))
        except ValueError as error:
            shown = "the value" if self.is_secret else f"{raw!r:.200}"
            raise ValueError(f"{shown} is not usable; {error}") from None


def integer(low: int, high: int = 10**12) -> SettingType:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high} is accepted")
        return int(text)

    return SettingType(parse, "N")


def integer_or_auto(low: int, high: int) -> SettingType:
    def parse(text: str) -> int | Literal["auto"]:
        if text == "auto":
            return "auto"
        if not re.fullmatch(r"\d{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high}, or auto, is accepted")
        return int(text)

    return SettingType(parse, "N|auto")


def devices() -> SettingType:
    """Return the type of a number of workers, all cards, or numbers of cards separated by commas; one card is "2,"."""

    def parse(text: str) -> Devices:
        if text == "all":
            return "all"
        if re.fullmatch(r"[1-9]\d{,5}", text):
            return int(text)
        is_list = re.fullmatch(r"\d{1,6}(,\d{1,6})+|\d{1,6},", text)
        cards = tuple(map(int, text.removesuffix(",").split(","))) if is_list else ()
        if not cards or len(set(cards)) < len(cards):
            raise ValueError("an integer of at least 1, all, or numbers of GPUs such as 0,2 (one: 2,) are accepted")
        return cards

    return SettingType(parse, "N|all|LIST")


def decimal(low: float, high: float, accepted: str, metavar: str) -> SettingType:
    def parse(text: str) -> float:
        if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) or not low <= float(text) <= high:
            raise ValueError(f"{accepted} is accepted")
        return float(text)

    return SettingType(parse, metavar)


def share() -> SettingType:
    """Return the type of a part of a whole: more than nothing, and at most all."""
    return decimal(1e-9, 1, "a number above 0 and at most 1", "SHARE")


def seconds() -> SettingType:
    return decimal(0, 10**9, f"a number of seconds from 0 to {10**9}", "SECONDS")


def choice(*choices: str) -> SettingType:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"accepted are {', '.join(choices)}")
        return text

    return SettingType(parse, "|".join(choices))


def text(metavar: str, *, may_be_empty: bool = False) -> SettingType:
    def parse(text: str) -> str:
        if not may_be_empty and not text.strip():
            raise ValueError("text that is not empty is accepted")
        return text

    return SettingType(parse, metavar)


def texts(metavar: str, read: Callable[[str], Any] = str, *, is_secret: bool = False) -> SettingType:
    """Return the type of several values: the flag is repeated, the variable separates them by commas."""

    def parse(text: str) -> tuple[Any, ...]:
        values = tuple(part.strip() for part in text.split(","))
        if not all(values):
            raise ValueError("a value in the list is empty; non-empty values are accepted")
        return tuple(map(read, values))

    return SettingType(parse, metavar, is_list=True, is_secret=is_secret)


def origins(itself: str = "") -> SettingType:
    """Return the type of web origins: scheme, host, and port unless it is the scheme's default. itself: a word for the
    server's own origin, which is quoted in a content security policy.
    """
    accepted = "an origin such as https://notebook.example or http://localhost:3000" + (itself and f", or {itself}")

    def read(text: str) -> str:
        if itself and text.lower().strip("'") == itself:
            return f"'{itself}'"
        _check_url(text, accepted, is_origin=True)
        return text.lower()

    return texts("ORIGIN", read)


def url() -> SettingType:
    """Return the type of the address of another server."""

    def parse(text: str) -> str:
        _check_url(text, "an address such as http://localhost:4318", is_origin=False)
        return text

    return SettingType(parse, "URL")


def _check_url(text: str, accepted: str, *, is_origin: bool) -> None:
    match = _URL.fullmatch(text)
    if match is None or int(match[2] or 0) > 65535 or (is_origin and (match[1] or match[3])):
        raise ValueError(f"{accepted} is accepted")


def switch() -> SettingType:
    def parse(text: str) -> bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"accepted are {', '.join(_TRUE + _FALSE)}")
        return text.lower() in _TRUE

    return SettingType(parse, "", is_flag=True)


def parse_bytes(text: str) -> int:
    """Read bytes such as "1073741824", "512MiB" (powers of 1024) or "2GB", also "2G" (powers of 1000)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("a size such as 1073741824, 512MiB or 2GB is accepted")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def byte_size() -> SettingType:
    def parse(text: str) -> int:
        size = parse_bytes(text)
        if size < 1:
            raise ValueError("a size of at least one byte is accepted")
        return size

    return SettingType(parse, "BYTES")


def format_bytes(size: int) -> str:
    """Return a size in the largest binary unit that keeps it whole: 1073741824 -> 1GiB."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size >= 1024**power and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
