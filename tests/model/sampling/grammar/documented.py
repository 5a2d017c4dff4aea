"""Writes the tables of docs/structured-outputs.md from the code.

python -m tests.model.sampling.grammar.documented
"""

import re
from pathlib import Path
from typing import Any

from lightwell.model.sampling.grammar import (
    checking,
    deep_stack,
    gbnf,
    json_schema,
    numbers,
    objects,
    places,
    schema_alternatives,
    strings,
    structural_tags,
    texts,
)

PAGE = Path(__file__).parents[4] / "docs" / "structured-outputs.md"


def _table(header: str, rows: list[tuple[str, Any]]) -> str:
    return "\n".join([header, "|---|---|", *(f"| {first} | {second} |" for first, second in rows)])


def honoured() -> str:
    """List the keywords that restrict an answer."""
    kinds = {"any": "any value"}
    rows: list[tuple[str, Any]] = [
        (kinds.get(kind, kind), ", ".join(f"`{k}`" for k in keywords)) for kind, keywords in places.HONOURED.items()
    ]
    return _table("| of | keywords |", rows)


def refused() -> str:
    """List the keywords that are refused."""
    rows: list[tuple[str, Any]] = [(f"`{keyword}`", reason) for keyword, reason in places.REFUSED.items()]
    return _table("| refused | why |", rows)


def limits() -> str:
    """List the limits."""
    rows: list[tuple[str, Any]] = [
        ("bytes of a schema", places.MAX_BYTES),
        ("values in a schema", places.MAX_VALUES),
        ("arrays and objects of a schema's JSON that hold each other", places.MAX_DEPTH),
        ("alternatives that anyOf and oneOf make at one place", schema_alternatives.MAX_ALTERNATIVES),
        ("branches of oneOf", schema_alternatives.MAX_BRANCHES),
        ("properties of one object that are not required, and values that uniqueItems lets come once",
         objects.MAX_OPTIONAL),
        ("minItems and minProperties; a larger maxItems is lowered to it", objects.MAX_ITEMS),
        ("minLength; a larger maxLength is lowered to it", strings.MAX_LENGTH),
        ("patterns and formats of one text; patterns and lengths of an object's names", strings.MAX_SHAPES),
        ("all multipleOf of a schema together", json_schema.MAX_MULTIPLE),
        ("digits of a number", numbers.DIGITS),
        ("characters of a pattern", texts.MAX_PATTERN),
        ("repetitions in a pattern (nested repetitions are multiplied)", texts.MAX_COUNTED),
        ("choices", texts.MAX_CHOICES),
        ("bytes of a grammar, and of all choices", gbnf.MAX_BYTES),
        ("parts in a row, of a pattern or a grammar, that may be left out", checking.MAX_OPTIONAL),
        ("rules and brackets of a grammar, and rules that a schema needs", deep_stack.MAX_NESTED),
        ("repetitions of one part of a grammar", gbnf.MAX_REPEATED),
        ("tags", structural_tags.MAX_TAGS),
        ("characters of the grammars of all tags' schemas", structural_tags.MAX_CHARACTERS),
    ]  # fmt: skip
    return _table("| | at most |", rows)


def written(page: str) -> str:
    """Put the tables into the page's text."""
    for name, table in [("honoured", honoured()), ("refused", refused()), ("limits", limits())]:
        page = re.sub(
            rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", table.replace("\\", r"\\"), page, flags=re.DOTALL
        )
    held = " and ".join([", ".join(f"`{name}`" for name in strings.FORMATS[:-1]), f"`{strings.FORMATS[-1]}`"])
    left = " and ".join(
        [", ".join(f"`{name}`" for name in strings.REFUSED_FORMATS[:-1]), f"`{strings.REFUSED_FORMATS[-1]}`"]
    )
    formats = f"- `format` holds for {held}; {left} are refused, and other names are annotations, as the standard says."
    return re.sub(r"^- `format` holds for .*?says\.$", formats, page, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
