"""Asks for the tool calls of the Berkeley Function-Calling Leaderboard, and has each call judged by `jsonschema`.

    pip download --no-deps bfcl-eval
    python -m benchmarks.structured.tools bfcl_eval-2026.3.23-py3-none-any.whl

The package has the questions and the tools; only whether calls can be parsed is asked here, not whether they are good.
With tool_choice "required" each answer that was not cut off must be calls of the tools that were given, with arguments
that their schemas admit; with "auto" it prints how many answers call. Ends with status 1 where a call is wrong.
"""

import argparse
import asyncio
import json
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from benchmarks.comparison import table
from benchmarks.structured.answers import PATIENT, lines_of
from tests.support.processes import serve

CATEGORIES = ("simple_python", "parallel", "live_simple", "live_parallel")
MOST_TOKENS = 512
CLIENTS = 8
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""JSON schema's name of each type that the data names otherwise; "any" restricts nothing."""


@dataclass(frozen=True)
class Question:
    category: str
    name: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]


def questions(wheel: Path, categories: Sequence[str], most: int | None) -> Iterator[Question]:
    """Read the first `most` questions of each category from the package's file."""
    with zipfile.ZipFile(wheel) as packed:
        for category in categories:
            lines = packed.read(f"bfcl_eval/data/BFCL_v4_{category}.json").decode().splitlines()
            for line in lines[:most]:
                read = json.loads(line)
                tools = [{"type": "function", "function": function_of(each)} for each in read["function"]]
                yield Question(category, read["id"], read["question"][0], tools)


def function_of(described: dict[str, Any]) -> dict[str, Any]:
    """Write a function as OpenAI's API has it: names without dots, and the types of JSON schema."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", described["name"])[:64]
    return {"name": name, "description": described["description"], "parameters": schema_of(described["parameters"])}


def schema_of(given: Any) -> Any:
    """Write a schema with the types of JSON schema, at every depth."""
    made = {key: value for key, value in given.items() if key not in ("optional", "default")}
    if isinstance(kind := made.get("type"), str) and kind in TYPES:
        made["type"] = TYPES[kind]
    if made.get("type") is None:
        made.pop("type", None)
    if isinstance(named := made.get("properties"), dict):
        made["properties"] = {key: schema_of(value) for key, value in named.items()}
    if isinstance(made.get("items"), dict):
        made["items"] = schema_of(made["items"])
    return made


def possible(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without the `enum` of arrays, whose author meant that of their items: no value is both."""
    arrays = {key: each for key, each in schema.get("properties", {}).items() if each.get("type") == "array"}
    made = {key: {name: value for name, value in each.items() if name != "enum"} for key, each in arrays.items()}
    return {**schema, "properties": {**schema.get("properties", {}), **made}}


def fault(calls: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str | None:
    """Return what is wrong with the calls of an answer, or None."""
    parameters = {tool["function"]["name"]: possible(tool["function"]["parameters"]) for tool in tools}
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name not in parameters:
            return f"there is no tool {name!r}"
        try:
            jsonschema.validate(json.loads(arguments), parameters[name])
        except ValueError as error:
            return f"{arguments!r} is no JSON: {error}"
        except jsonschema.ValidationError as error:
            return f"{arguments!r}: {error.message[:200]}"
    return None


async def calls_of(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[list[dict[str, Any]], str, str]:
    """Send a body; return the calls, the text beside them and why the answer ended. Raises httpx.HTTPError."""
    if not body.get("stream"):
        answer = await http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            raise httpx.HTTPError(answer.text[:300])
        (choice,) = answer.json()["choices"]
        return choice["message"].get("tool_calls") or [], choice["message"]["content"] or "", choice["finish_reason"]
    calls: dict[int, dict[str, Any]] = {}
    text, end = "", ""
    async with http.stream("POST", "/v1/chat/completions", json=body) as events:
        if events.status_code != 200:
            raise httpx.HTTPError((await events.aread()).decode()[:300])
        async for line in lines_of(events):
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise httpx.HTTPError(line[:300])
            for choice in chunk["choices"]:
                text, end = text + (choice["delta"].get("content") or ""), choice["finish_reason"] or end
                for part in choice["delta"].get("tool_calls") or ():
                    kept = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})["function"]
                    kept["name"] += part["function"].get("name") or ""
                    kept["arguments"] += part["function"].get("arguments") or ""
    return [calls[index] for index in sorted(calls)], text, end


async def measure(url: str, asked: Sequence[Question], choice: str, temperature: float) -> dict[str, Counter[str]]:
    """Ask all questions, every second one as a stream, and count by category what came."""
    seen: dict[str, Counter[str]] = {question.category: Counter() for question in asked}
    waiting = iter(enumerate(asked))

    async def client() -> None:
        for number, question in waiting:
            count = seen[question.category]
            body = {"messages": question.messages, "tools": question.tools, "tool_choice": choice, "seed": number}
            body |= {"max_tokens": MOST_TOKENS, "temperature": temperature, "stream": number % 2 == 1}
            count["answers"] += 1
            try:
                calls, text, end = await calls_of(http, body)
            except httpx.HTTPError as error:
                count["errors"] += 1
                print(f"ERROR {question.name}: {error}", flush=True)
                continue
            if end == "length":
                count["cut off"] += 1
                continue
            count["call"] += bool(calls)
            wrong = fault(calls, question.tools)
            if choice == "required" and (end != "tool_calls" or not calls or text):
                wrong = wrong or f"it ended by {end} with {len(calls)} calls and the text {text[:100]!r}"
            count["wrong"] += wrong is not None
            if wrong:
                print(f"WRONG {question.name} ({choice}, {temperature}, stream {body['stream']}): {wrong}", flush=True)

    async with httpx.AsyncClient(base_url=url, timeout=300) as http, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the file of the package bfcl-eval")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--questions", type=int, help="of each category at most")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tool-choice", nargs="+", choices=["required", "auto"], default=["required", "auto"])
    options = parser.parse_args()
    asked = list(questions(options.wheel, options.categories, options.questions))
    rows = [["tool_choice", "temperature", "category", "answers", "errors", "cut off", "call", "parse", "wrong", "s"]]
    is_wrong = False
    with serve([options.model, *PATIENT]) as server:
        for choice in options.tool_choice:
            for temperature in options.temperature:
                started = time.monotonic()
                for category, count in asyncio.run(measure(server.url, asked, choice, temperature)).items():
                    ended = count["answers"] - count["errors"] - count["cut off"]
                    called = f"{count['call'] / max(1, ended):.1%} of {ended}"
                    parse = f"{(ended - count['wrong']) / max(1, ended):.1%}"
                    cells = [*(str(count[name]) for name in ("answers", "errors", "cut off")), called, parse]
                    seconds = f"{time.monotonic() - started:.0f}"
                    rows.append([choice, str(temperature), category, *cells, str(count["wrong"]), seconds])
                    print(*rows[-1], flush=True)
                    is_wrong |= bool(count["wrong"] or count["errors"])
    print(table(rows))
    return int(is_wrong)


if __name__ == "__main__":
    raise SystemExit(main())
