"""Request thousands of answers under random schemas over HTTP, and validate each with the `jsonschema` package.

    python -m benchmarks.structured.answers --suite jsonschema-4.26.0/json/tests

A checkpoint with random weights and SmolLM2 answer at four temperatures, streamed and not, some with n. Half of the
schemas come from random pydantic models; the others have random keywords or come from the official suite
(`benchmarks.structured.suite` describes its source). Prints invalid answers with the schema and the body; the exit
status is 1 if a bar is missed.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from jsonschema import validators

from benchmarks.comparison import table
from benchmarks.structured.drawn import of_keywords, of_models, of_suite
from tests import tiny
from tests.model.sampling.grammar.schemas import Validator
from tests.support.processes import serve

TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
MOST_TOKENS = 400
CLIENTS = 8
PATIENT = ("--max-queue-time", "600")
"""Flags of the server: a slow machine is no reason to refuse."""
MODELS, KEYWORDS, SUITE = "pydantic models", "keywords at random", "official suite"
MOST_REFUSED = 0.05
"""Maximum share of rejected schemas of pydantic models. The other schemas test unsupported keywords on purpose."""
LEAST_ENDED = 0.95
"""Minimum share of answers that end by themselves."""


@dataclass
class Tally:
    answers: int = 0
    ended: int = 0
    invalid: int = 0
    errors: int = 0
    asked: int = 0
    """Number of schemas in requests."""
    refused: Counter[str] = field(default_factory=Counter)
    """Rejected schemas, by the keyword and reason."""


@dataclass(frozen=True)
class Case:
    number: int
    source: str
    schema: Any
    bodies: Sequence[dict[str, Any]]


def cases(answers: int, seed: int, suite: Path | None) -> Iterator[Case]:
    """Draw schemas until `answers` answers were requested; which are refused is not known yet, so there are more."""
    chance = random.Random(seed)
    number = answers // len(TEMPERATURES) + 1
    sources = {MODELS: of_models(2 * number, seed), KEYWORDS: of_keywords(2 * number, seed)}
    if suite:
        sources[SUITE] = list(of_suite(suite))
        chance.shuffle(sources[SUITE])
    drawn = {name: iter(schemas) for name, schemas in sources.items()}
    for index in range(4 * number):
        name = MODELS if index % 2 else (SUITE if suite and index % 4 else KEYWORDS)
        schema = next(drawn[name], None)
        if schema is None:
            continue
        bodies = []
        for turn, temperature in enumerate(TEMPERATURES):
            more = {"n": 2} if chance.random() < 0.2 else {}
            body = {"temperature": temperature, "seed": chance.randrange(2**31), "max_tokens": MOST_TOKENS}
            bodies.append({**body, "stream": (index + turn) % 2 == 0, **more})
        yield Case(index, name, schema, bodies)


def body_of(schema: Any, chat: bool) -> dict[str, Any]:
    """Request an answer to a schema, as a chat or as a completion."""
    if chat:
        told = f"Answer with JSON of this schema: {json.dumps(schema)[:600]}"
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return {"messages": [{"role": "user", "content": told}], "response_format": form}
    return {"prompt": "Once upon a time", "structured_outputs": {"json": json.dumps(schema)}}


async def choices_of(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Send a body, and return each choice's text and finish reason. Raises ValueError if there is no answer."""
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    if not body["stream"]:
        answer = await http.post(path, json=body)
        if answer.status_code != 200:
            raise Unanswered(answer.status_code, answer.json()["error"])
        read = [answer.json()]
    else:
        read = []
        async with http.stream("POST", path, json=body) as events:
            if events.status_code != 200:
                raise Unanswered(events.status_code, json.loads(await events.aread())["error"])
            async for line in lines_of(events):
                if line.startswith("data: {"):
                    read.append(json.loads(line.removeprefix("data: ")))
    for part in read:
        if "error" in part:
            raise Unanswered(200, part["error"])
        for choice in part["choices"]:
            text = choice.get("text", (choice.get("delta") or choice.get("message") or {}).get("content"))
            texts[choice["index"]] = texts.get(choice["index"], "") + (text or "")
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    if len(texts) != body.get("n", 1):
        raise Unanswered(200, {"message": f"{len(texts)} choices for n={body.get('n', 1)}"})
    return [(texts[index], ends[index]) for index in sorted(texts)]


async def lines_of(events: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream. httpx itself also parts lines at characters that JSON may hold, such as U+2028."""
    rest = ""
    async for text in events.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line


class Unanswered(ValueError):
    """A status other than 200, or an error within a stream."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error.get('message')}")
        self.error = error


async def ask(http: httpx.AsyncClient, case: Case, chat: bool, tally: Tally) -> None:
    """Request answers to one schema at every temperature, and validate them."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked = body_of(case.schema, chat)
    tally.asked += 1
    for settings in case.bodies:
        body = {**asked, **settings}
        try:
            found = await choices_of(http, path, body)
        except Unanswered as error:
            if error.error.get("code") == "grammar_refused":
                keyword = str(error.error.get("param")).rpartition(".")[2]
                tally.refused[f"{keyword}: {str(error.error['message']).partition(': ')[2][:60]}"] += 1
                return
            tally.errors += 1
            tell("ERROR", case, body, str(error))
            continue
        except (httpx.HTTPError, KeyError, ValueError) as error:
            tally.errors += 1
            tell("ERROR", case, body, repr(error))
            continue
        for text, end in found:
            tally.answers += 1
            tally.ended += end == "stop"
            wrong = fault(text, case.schema) if end == "stop" else None if end == "length" else f"it ended by {end}"
            if wrong:
                tally.invalid += 1
                tell("INVALID", case, body, f"{text!r}: {wrong}")


def fault(text: str, schema: Any) -> str | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    named = isinstance(schema, dict) and "$schema" in schema
    judge = validators.validator_for(schema)(schema) if named else Validator(schema)
    found = next(iter(judge.iter_errors(value)), None)
    return None if found is None else found.message[:200]


def tell(kind: str, case: Case, body: dict[str, Any], what: str) -> None:
    settings = {name: body[name] for name in ("temperature", "seed", "stream", "n") if name in body}
    print(f"{kind} (case {case.number}, {settings}): {what}\n    schema: {json.dumps(case.schema)}", flush=True)


async def measure(url: str, chat: bool, answers: int, seed: int, suite: Path | None) -> dict[str, Tally]:
    """Send requests to one server until it has given `answers` answers."""
    tallies = {MODELS: Tally(), KEYWORDS: Tally()} | ({SUITE: Tally()} if suite else {})
    waiting = cases(answers, seed, suite)

    async def client() -> None:
        for case in waiting:
            if sum(tally.answers for tally in tallies.values()) >= answers:
                return
            await ask(http, case, chat, tallies[case.source])

    async with httpx.AsyncClient(base_url=url, timeout=300) as http, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return tallies


@contextmanager
def server_of(model: str, url: str | None) -> Iterator[str]:
    """Yield the address of a server for "random" or another model: the given address, or a new server's."""
    if url:
        yield url
        return
    with TemporaryDirectory(prefix="lightwell-answers-") as folder:
        if model == "random":
            tiny.make_variant("llama-gqa", Path(folder), max_position_embeddings=1024)
        with serve([folder if model == "random" else model, *PATIENT]) as server:
            yield server.url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000, help="of all models together")
    parser.add_argument("--models", nargs="+", default=["random", "smollm2"])
    parser.add_argument("--url", help="a server that runs already, for one model")
    parser.add_argument("--suite", type=Path, help="the official suite's folder json/tests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [["model", "schemas", "asked", "refused", "answers", "invalid", "errors", "ended by themselves", "s"]]
    refused: dict[str, Counter[str]] = {}
    missed = False
    for model in options.models:
        started = time.monotonic()
        with server_of(model, options.url) as url:
            each = options.answers // len(options.models)
            tallies = asyncio.run(measure(url, model != "random", each, options.seed, options.suite))
        for source, tally in tallies.items():
            refused.setdefault(source, Counter()).update(tally.refused)
            no, ended = sum(tally.refused.values()) / max(1, tally.asked), tally.ended / max(1, tally.answers)
            cells = [tally.asked, f"{no:.1%}", tally.answers, tally.invalid, tally.errors, f"{ended:.1%}"]
            rows.append([model, source, *map(str, cells), f"{time.monotonic() - started:.0f}"])
            missed |= bool(tally.invalid or tally.errors) or (source == MODELS and no > MOST_REFUSED)
        ended = sum(tally.ended for tally in tallies.values()) / max(1, sum(t.answers for t in tallies.values()))
        missed |= ended < LEAST_ENDED
    print(table(rows))
    for source, reasons in refused.items():
        print(f"\nrefused, {source}:", *(f"{count:6} {reason}" for reason, count in reasons.most_common(12)), sep="\n")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
