"""Sentences of a text: plain text, Markdown and code, as ranges of characters.

A sentence ends at its punctuation, a paragraph, heading, table row or list item at its end, and code at each line. A
fenced block without a language is text. Independent of tokens and models.
"""

import re
from collections.abc import Iterator

_END = re.compile(r"[.!?\u2026]+[\"'\u201d\u2019)\]*_]*(?=\s)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\u2019\uff09]*")
"""Punctuation at the end of a sentence, with closing quotation marks and brackets."""
_BEFORE_DOT = re.compile(r"(?:^|[\s(\"'])([^\s(\"']*)$")
_ABBREVIATION = re.compile(
    r"al|approx|ca|cf|co|corp|dept|dr|e\.g|eq|etc|fig|gov|i\.e|inc|jr|ltd|mrs?|ms|no|pp?|prof|[sj]r|st|u\.[ks]|vol|vs",
    re.IGNORECASE,
)
_BLOCK = re.compile(r"\s*(?:[-*+\u2022]\s|\d{1,3}[.)]\s|#{1,6}\s|>|\||```|~~~)|\s*$|(?: {4}|\t)")
"""The beginning of a line that does not continue the line before it."""
_WHOLE = re.compile(r"\s*(?:#{1,6}\s|\||```|~~~)")
"""The beginning of a line that the next line does not continue."""
_LONG_LINE = 40
"""Fewest characters of a line of wrapped text that the next line continues."""


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the sentences of a text as ranges [start, end) of characters, in order, without outer white space."""
    found = []
    for begin, end, is_code in _paragraphs(text):
        start = begin
        for match in () if is_code else _END.finditer(text, begin, end):
            if _is_end(text, start, match, end):
                found.append((start, match.end()))
                start = match.end()
        found.append((start, end))
    return [_trimmed(text, *each) for each in found if text[slice(*each)].strip()]


def _paragraphs(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of lines that belong together, wrapped text or one line, and whether they are code."""
    begin = position = 0
    is_code = False
    lines = text.split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        position += len(line) + 1
        is_fence = line.lstrip().startswith(("```", "~~~"))
        is_code = not is_code and line.strip(" `~") != "" if is_fence else is_code
        if is_code or is_fence or not _is_continued(line, following):
            yield begin, min(position, len(text)), is_code or line.startswith(("    ", "\t"))
            begin = position


def _is_continued(line: str, following: str) -> bool:
    is_long = len(line.rstrip()) >= _LONG_LINE and not line.rstrip().endswith(":")
    return is_long and not _WHOLE.match(line) and not _BLOCK.match(following)


def _is_end(text: str, start: int, match: re.Match[str], end: int) -> bool:
    """Return whether punctuation ends the sentence that begins at `start`."""
    rest = text[match.end() : min(end, match.end() + 8)].lstrip()
    if match[0][0] in "\u3002\uff01\uff1f":
        return True
    if rest[:1].islower():
        return False
    if match[0] != ".":
        return True
    before = _BEFORE_DOT.search(text, max(0, match.start() - 12), match.start())
    word = "" if before is None else before[1]
    is_initial = len(word) == 1 and word.isalpha() and word.isupper()
    is_number_of_item = word.isdecimal() and not text[start : match.start()].replace(word, "", 1).strip()
    return not (is_initial or is_number_of_item or _ABBREVIATION.fullmatch(word))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())
