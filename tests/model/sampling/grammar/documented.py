"""Writes the tables of docs/structured-outputs.md from the code.

python -m tests.model.sampling.grammar.documented
"""

import re
import textwrap
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
    return _table("| rejected | reason |", rows)


def limits() -> str:
    """List the limits."""
    rows: list[tuple[str, Any]] = [
        ("bytes of a schema", places.MAX_BYTES),
        ("values in a schema", places.MAX_VALUES),
        ("nested arrays and objects in the JSON of a schema", places.MAX_DEPTH),
        ("alternatives from anyOf and oneOf at one place", schema_alternatives.MAX_ALTERNATIVES),
        ("branches of oneOf", schema_alternatives.MAX_BRANCHES),
        ("optional properties of one object, and values of uniqueItems", objects.MAX_OPTIONAL),
        ("minItems and minProperties; a larger maxItems is lowered to it", objects.MAX_ITEMS),
        ("minLength; a larger maxLength is lowered to it", strings.MAX_LENGTH),
        ("patterns and formats of one text; patterns and lengths of an object's property names", strings.MAX_SHAPES),
        ("sum of all multipleOf of a schema", json_schema.MAX_MULTIPLE),
        ("digits of a number", numbers.DIGITS),
        ("characters of a pattern", texts.MAX_PATTERN),
        ("repetitions in a pattern (nested repetitions are multiplied)", texts.MAX_COUNTED),
        ("choices", texts.MAX_CHOICES),
        ("bytes of a grammar, and of all choices together", gbnf.MAX_BYTES),
        ("consecutive optional parts of a pattern or a grammar", checking.MAX_OPTIONAL),
        ("rules and brackets of a grammar, and rules of a schema", deep_stack.MAX_NESTED),
        ("repetitions of one part of a grammar", gbnf.MAX_REPEATED),
        ("tags", structural_tags.MAX_TAGS),
        ("characters of the grammars of all tags' schemas together", structural_tags.MAX_CHARACTERS),
    ]  # fmt: skip
    return _table("| | at most |", rows)


def written(page: str) -> str:
    """Put the tables into the page's text."""
    for name, table in [("honoured", honoured()), ("refused", refused()), ("limits", limits())]:
        page = re.sub(
            rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", table.replace("\\", r"\\"), page, flags=re.DOTALL
        )
    *first, last = (f"`{name}`" for name in strings.FORMATS)
    *refused_first, refused_last = (f"`{name}`" for name in strings.REFUSED_FORMATS)
    formats = (
        f"- `format` is enforced for {', '.join(first)} and {last}. {', '.join(refused_first)} and {refused_last} are "
        "rejected. Other names are annotations, as in the standard;"
    )
    wrapped = textwrap.fill(formats, 120, subsequent_indent="  ", break_on_hyphens=False)
    page, count = re.subn(r"^- `format` is enforced for .*?standard;$", wrapped, page, flags=re.MULTILINE | re.DOTALL)
    assert count == 1
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
