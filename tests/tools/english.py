"""Count phrases that make English hard to read, in documents, messages, help, the page, comments and docstrings.

    python -m tests.tools.english [--list] [--record] [PATH ...]

Run it in the project's root. Each PATH is a file or folder that git tracks; without one, all of them are read. It
prints the hits per 1,000 words of each place and kind of text; `--list` prints each hit. `--record` lowers the counts
in tests/english.json, which tests/test_english.py reads. With the same method, FastAPI has 0.4 hits per 1,000 words,
httpx 0.5 and pydantic 0.9.
"""

import argparse
import ast
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.tools.javascript import comments_and_texts

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "english.json"

PATTERNS = {
    "what-clause": r"(?<!\bso )\b[Ww]hat (?!(?:is|are|was|were|does|do|did|can|would|should|will)\b[^.?!]*\?)(?:\w+)",
    "whoever/nobody": r"\b(?:whoever|whatever it|nobody|nobody's|no one|everybody else|somebody)\b",
    "knows no": r"\b(?:knows? (?:no|nothing|neither)|never knows?)\b",
    "tells/told": r"\b(?:tells?|told|foretold|foretells?)\b",
    "asked for": r"\b(?:is|are|was|were|be|been) asked(?: for)?\b|\basks? (?:for|of|about)\b",
    "so many/so much": r"\b(?:so many|so much|so few|that many|as many as)\b",
    "of which/whose": r"\b(?:of which|of whom|of whose|whose)\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "stands/lies": r"\b(?:stands?|stood|lies|lay)\b(?! (?:for|out)\b)",
    "anew/besides/thereof": r"\b(?:anew|besides|thereof|therein|hereby|lest|hence|nor)\b",
    "goes by/goes on": r"\bgo(?:es)? (?:on|by|without)\b",
    "it has the": r"\b(?:it|they|each|this) has the\b",
    "alone (= only)": r"\b\w+ alone\b",
    "such/those that": r"\b(?:such that|those that|that of|those of)\b",
    "is to/are to": r"\b(?:is|are|was|were) to (?:be|have|go|come|do|say|hold|take)\b",
    "say/says of": r"\b(?:say|says|said) (?:of|so|which|what|how|where|whether|why)\b",
    "comes out": r"\b(?:come|comes|came) (?:out|with it|of it|from nothing)\b",
    "beside": r"\bbeside\b",
    "let": r"\b(?:let|lets) (?!us\b)\w+ (?:go|in|be|through|have)\b",
    "the former/the latter": r"\b(?:the former|the latter|the one of|the other of)\b",
}
COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}

# Texts that users read, at most `LIMIT` hits per 1,000 words; the other texts are comments and docstrings.
LIMIT = 2.0
CODE_IN_MARKDOWN = re.compile(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|https?://\S+|<!--.*?-->", re.S)
DISTRIBUTED = ("server/", "model/", "clients/", "deploy/")
HELP = ("server/cli.py", "server/config/settings.py")
OTHERS_FILES = ("vendor", "third_party", "server/web/docs", "swagger-ui")
SUFFIXES = (".py", ".md", ".cpp", ".h", ".js", ".json", ".yaml", ".yml", ".tpl", ".txt")
LOGGED = ("debug", "info", "warning", "error", "exception")

Text = tuple[str, int, str]
"""Kind of text, first line, and the text."""


def is_prose(text: str) -> bool:
    return len(text.split()) >= 3


def joined(node: ast.AST) -> str | None:
    """Return the text of a string or an f-string; a placeholder becomes `{}`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called_name(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


STRING_OR_COMMENT = re.compile(
    r'''("""|\'\'\')(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)''', re.DOTALL
)


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment; tokenize takes ten times as long."""
    line, place = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        comment = found["comment"]
        if comment and not comment.startswith(("#!", "# type", "# noqa")):
            line += source.count("\n", place, found.start())
            place = found.start()
            yield line, comment[1:]


def python_texts(path: str, source: str) -> Iterator[Text]:
    comments = "docstrings" if path.startswith("clients/python/lightwell_client") else "comments"
    kind = "help" if path in HELP else "messages"
    # Each node with the kind of its strings; without a kind, only the texts of distributed code count.
    left: list[tuple[ast.AST, str | None]] = [(ast.parse(source), kind if path.startswith(DISTRIBUTED) else None)]
    while left:
        node, kind_here = left.pop()
        if isinstance(node, ast.Expr) and (text := joined(node.value)) is not None:
            yield comments, node.lineno, text
            continue
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and called_name(node) in LOGGED):
            kind_here = kind_here or kind
        elif isinstance(node, ast.keyword) and node.arg in ("description", "summary") and kind_here == "messages":
            kind_here = "openapi"
        elif isinstance(node, ast.Constant | ast.JoinedStr) and kind_here:
            text = joined(node)
            if text is not None and is_prose(text):
                yield kind_here, node.lineno, text
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                left.append((value, kind_here))
            elif isinstance(value, list):
                is_part = isinstance(node, ast.JoinedStr)
                left += [
                    (part, kind_here)
                    for part in value
                    if isinstance(part, ast.AST) and not (is_part and isinstance(part, ast.Constant))
                ]
    yield from (("comments", line, text) for line, text in python_comments(source))


def json_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and is_prose(value):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from json_texts(part)


def texts(path: str) -> Iterator[Text]:
    """Yield the English texts of a file."""
    source = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    suffix = Path(path).suffix
    if suffix == ".py":
        yield from python_texts(path, source)
    elif suffix == ".md":
        yield "documents", 1, CODE_IN_MARKDOWN.sub(lambda found: "\n" * found.group().count("\n"), source)
    elif suffix in (".cpp", ".h"):
        for number, line in enumerate(source.splitlines(), 1):
            if found := re.search(r"(?:^|\s)(?://|\*)\s?(.*)", line):
                yield "comments", number, found.group(1)
    elif suffix == ".js":
        for number, text, is_comment in comments_and_texts(source):
            if is_comment or is_prose(text):
                yield "comments" if is_comment else "page", number, text
    elif path.startswith("server/web/page/lessons/"):
        yield from (("lessons", 1, text) for text in json_texts(json.loads(source)))
    elif path.endswith("values.schema.json"):
        yield from (("manifests", 1, text) for text in json_texts(json.loads(source)))
    elif path.startswith("deploy/") and suffix in (".yaml", ".yml", ".tpl", ".txt"):
        for number, line in enumerate(source.splitlines(), 1):
            found = re.search(r"(?:^|\s)#\s?(.*)|^\s*(?:summary|description): (.*)", line)
            if found or path.endswith(".txt"):
                yield "manifests", number, (found.group(1) or found.group(2) or "") if found else line


def tracked(*paths: str) -> list[str]:
    named = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        path
        for path in named.splitlines()
        if Path(path).suffix in SUFFIXES and not any(part in path for part in OTHERS_FILES) and (ROOT / path).is_file()
    ]


def place(path: str, kind: str) -> str:
    top, *rest = Path(path).parts
    return f"{top}: {kind}" if rest else top


def count(*paths: str) -> tuple[Counter[str], Counter[str], list[tuple[str, str, str]]]:
    """Return the words and the hits of each place, and each hit: its file and line, pattern and words."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    found = []
    for path in tracked(*paths):
        for kind, line, text in texts(path):
            words[place(path, kind)] += len(text.split())
            for name, pattern in COMPILED.items():
                for hit in pattern.finditer(text):
                    hits[place(path, kind)] += 1
                    found.append((f"{path}:{line + text[: hit.start()].count(chr(10))}", name, hit.group()))
    return words, hits, found


def record(hits: Counter[str]) -> None:
    """Write the counts that fell, and counts of new places."""
    held = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    lowered = {where: min(number, held.get(where, number)) for where, number in hits.items()}
    RECORD.write_text(json.dumps(lowered, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each hit with its place")
    parser.add_argument("--record", action="store_true", help="lower the counts in tests/english.json")
    parser.add_argument("paths", nargs="*", help="files or folders")
    args = parser.parse_args()
    words, hits, found = count(*args.paths)
    if args.list:
        print("\n".join(f"{where}: {name}: {text}" for where, name, text in found))
    for where in sorted(words, key=lambda where: (-hits[where], where)):
        rate = 1000 * hits[where] / words[where]
        print(f"{where:24} {hits[where]:6} hits {words[where]:8} words {rate:6.1f} per 1,000")
    print(f"total {hits.total()} in {words.total()} words")
    if args.record:
        record(hits)


if __name__ == "__main__":
    main()
