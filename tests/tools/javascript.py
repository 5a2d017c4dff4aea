"""Split JavaScript into its comments and the texts of its strings and templates, for counts of words."""

import re
from collections.abc import Iterator

TAG = re.compile(r"<[^<>]*>")
REGEX = re.compile(r"/(?![/*])(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n])+/[a-z]*")
BEFORE_REGEX = re.compile(r"(?:^|[(,=:\[!&|?{};>]|\breturn)\s*\Z")


def comments_and_texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a comment. A placeholder of a template becomes `{}`, a tag a space."""
    at, counted, line = 0, 0, 1
    while at < len(source):
        if source[at] not in "/\"'`":
            at += 1
            continue
        line += source.count("\n", counted, at)
        counted = at
        if source.startswith("//", at):
            end = (source + "\n").find("\n", at)
            yield line, source[at + 2 : end], True
        elif source.startswith("/*", at):
            end = source.index("*/", at) + 2
            yield line, source[at + 2 : end - 2], True
        elif source[at] in "\"'":
            end = end_of_string(source, at)
            yield line, source[at + 1 : end - 1], False
        elif source[at] == "`":
            text, inner, end = template(source, at)
            yield line, re.sub(r"[ \n]+", " ", without_tags(text)), False
            for begin, placeholder in inner:
                for number, part, is_comment in comments_and_texts(placeholder):
                    yield number + source.count("\n", 0, begin), part, is_comment
        elif found := regular_expression(source, at):
            end = found.end()
        else:
            end = at + 1
        at = end


def regular_expression(source: str, at: int) -> re.Match[str] | None:
    """Return the literal of a regular expression that begins at `at`, if any."""
    return REGEX.match(source, at) if BEFORE_REGEX.search(source[max(0, at - 20) : at]) else None


def end_of_string(source: str, at: int) -> int:
    """Return the place after the string that begins at `at`."""
    end = at + 1
    while source[end] != source[at]:
        end += 2 if source[end] == "\\" else 1
    return end + 1


def template(source: str, at: int) -> tuple[str, list[tuple[int, str]], int]:
    """Return the text with `{}` for placeholders, each placeholder with its place, and the place after the template."""
    text, inner = "", []
    at += 1
    while source[at] != "`":
        if source.startswith("${", at):
            end = end_of_placeholder(source, at + 2)
            inner.append((at + 2, source[at + 2 : end]))
            text += "{}"
            at = end + 1
        else:
            step = 2 if source[at] == "\\" else 1
            text += source[at : at + step]
            at += step
    return text, inner, at + 1


def end_of_placeholder(source: str, at: int) -> int:
    """Return the place of the brace that closes the placeholder."""
    depth = 0
    while depth or source[at] != "}":
        if source[at] == "`":
            at = template(source, at)[2]
        elif source[at] in "\"'":
            at = end_of_string(source, at)
        else:
            depth += {"{": 1, "}": -1}.get(source[at], 0)
            at += 1
    return at


def without_tags(text: str) -> str:
    """Return the text between tags, and the attributes that a reader sees: titles, labels, placeholders."""
    seen = re.findall(r"\b(?:title|label|placeholder|aria-label|lack|about|hint)=\"([^\"]*)\"", text)
    return " . ".join([TAG.sub(" ", text), *seen])
