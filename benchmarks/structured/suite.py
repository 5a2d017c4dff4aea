"""Run the official JSON Schema Test Suite on structured outputs, and on plain llguidance for comparison.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
    python -m benchmarks.structured.suite jsonschema-4.26.0/json/tests

Prints for each draft the number of rejected schemas, and for the others the numbers of valid and invalid instances that
the grammar allows. The number of invalid instances must be 0.
"""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import llguidance

from benchmarks.structured.apart import result_apart
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from tests.support.walking import admits

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
TIMEOUT = 10
"""Seconds until the process of one schema and its instances is ended."""
LEFT_OUT = {"zeroTerminatedFloats.json": "is about 1.0 as a text", "content.json": "contents are annotations"}
"""Files of optional behaviour that are not tried, each with the reason."""
MAX_WRITINGS = 200
"""Most texts of one instance that are tried: its properties in each order, its numbers in each form."""


def writings(value: Any) -> Iterator[str]:
    """Write a value with its properties in every order, and whole numbers with and without a fraction."""
    if isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), MAX_WRITINGS):
            for inner in itertools.product(*(list(itertools.islice(writings(value[name]), 24)) for name in names)):
                pairs = zip(names, inner, strict=True)
                yield "{" + ", ".join(f"{json.dumps(n, ensure_ascii=False)}: {text}" for n, text in pairs) + "}"
    elif isinstance(value, list):
        for inner in itertools.product(*(list(itertools.islice(writings(item), 24)) for item in value)):
            yield "[" + ", ".join(inner) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and value:
            yield '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 65536 else c for c in value) + '"'
        if isinstance(value, float) and value == int(value):
            yield str(int(value))


def plain(schema: Any) -> str:
    """Return llguidance's own grammar of the schema, with our separators. Raises ValueError if it rejects it."""
    settings: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    held = schema if isinstance(schema, dict) else ({} if schema else {"enum": []})
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(held), settings)
    wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:
        raise ValueError(messages[0].splitlines()[0])
    return str(grammar)


def judge(write: Callable[[Any], str], group: dict[str, Any], uri: str) -> tuple[Counter[str], list[str]]:
    found, told, schema = Counter[str](), list[str](), group["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": uri, **schema}
    try:
        grammar = write(schema)
    except (GrammarError, ValueError) as error:
        found["refused"] += 1
        if not any(test["valid"] for test in group["tests"]):
            found["refused, rightly"] += 1
        return found, [f"refused: {group['description']}: {error}"]
    found["accepted"] += 1
    for test in group["tests"]:
        try:
            may = any(admits(grammar, text) for text in itertools.islice(writings(test["data"]), MAX_WRITINGS))
        except ValueError as error:
            told.append(f"ERROR: {group['description']}: {error}")
            found["error"] += 1
            continue
        found[f"{'valid' if test['valid'] else 'invalid'} {'admitted' if may else 'not admitted'}"] += 1
        if may != test["valid"]:
            kind = "WRONG" if may else "narrower"
            told.append(f"{kind}: {group['description']} / {test['description']}: {json.dumps(test['data'])[:80]}")
    return found, told


def main() -> int:
    """Print the table, and the differences with -v. Return 1 if an invalid instance is allowed."""
    drafts = sys.argv[2].split(",") if len(sys.argv) > 2 and sys.argv[2] != "-v" else list(DRAFTS)
    folder, verbose = Path(sys.argv[1]), "-v" in sys.argv
    columns = ["accepted", "refused", "valid admitted", "valid not admitted", "invalid not admitted"]
    columns.append("invalid admitted")
    totals: dict[str, Counter[str]] = {"ours": Counter(), "llguidance": Counter()}
    by_draft: dict[tuple[str, str], Counter[str]] = {}
    for draft in drafts:
        uri = DRAFTS[draft]
        for file in sorted((folder / draft).rglob("*.json")):
            if file.name in LEFT_OUT:
                continue
            keyword = str(file.relative_to(folder))
            for who, write in [("ours", json_schema_grammar), ("llguidance", plain)]:
                found: Counter[str] = Counter()
                told: list[str] = []
                for group in json.loads(file.read_text()):
                    late = Counter({"error": 1}), [f"TIMEOUT: {group['description']}"]
                    judged = result_apart(partial(judge, write, group, uri), TIMEOUT)
                    counted, lines = judged if isinstance(judged, tuple) else late
                    found += counted
                    told += lines
                totals[who] += found
                by_draft.setdefault((draft, who), Counter()).update(found)
                if verbose or (who == "ours" and (found["invalid admitted"] or found["error"])):
                    print(f"{who:10} {keyword:50}", *(f"{found[c]:5}" for c in columns), f"errors {found['error']}")
                    if who == "ours":
                        print(*(f"      {line}" for line in told), sep="\n")
    print(f"{'':30}", *columns, sep="  ")
    for (draft, who), found in [*by_draft.items(), *((("all", who), found) for who, found in totals.items())]:
        print(f"{draft:18}{who:12}", *(f"{found[column]:{len(column)}}" for column in columns), sep="  ")
    return int(totals["ours"]["invalid admitted"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
