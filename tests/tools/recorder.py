"""Records the answers to 2,000 requests in all dialects: `python -m tests.tools.recorder --out FILE`.

The requests come from `tests.tools.recorded_requests`. They are sent to the application in this process, with small
random networks and two scripted engines behind it, and float32 kernel arithmetic. FILE has one JSON line for each
request: its number, site, method, path, body and headers, the status and the answer. Ids, times and durations are
replaced by placeholders, so two runs of the same code write the same file.

`--compare A B` prints the first differences of two files, and ends with status 1 if there are any. `--at-once N` sends
N requests at one time: then numbers of cached tokens differ, and the order of the choices of a stream, which `--compare
A B --ignore-company` leaves out.
"""

import argparse
import asyncio
import difflib
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.tools.recorded_requests import Request, all_requests

CONTEXT = 768
"""Tokens of the context of the networks that write text."""
TEMPLATE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'assistant' and m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}
{%- if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}
    {%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
    {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson }}
    {{- '}\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""Writes tools and reasoning as Qwen 3 does."""
OPEN_THOUGHT = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<A><think>{# </think> #}{% endif %}"""
"""Opens a thought, so that a thinking budget has an effect."""
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
CALLS = (
    "<think>\nThe user asks for Köln.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
TEXT = 'It is "cold" in Köln 🙂: \\ 3 degrees.\n\n```python\nprint(1)\n```\nBring a coat.'
CACHED = re.compile(r'("(?:cached_tokens|cache_read_input_tokens|cache_creation_input_tokens|input_tokens)": ?)[0-9]+')
CHOICE = re.compile(r'data: .*"choices": ?\[\{"index": ?([0-9]+)')
USAGE = re.compile(r'"usage": ?\{[^{}]*(\{[^{}]*\})?[^{}]*\}')
NUMBERS = [
    (re.compile(r'("(?:created|created_at|completed_at|modified_at|expires_at|[a-z_]*(?:duration|_time))": ?)'
                r'("[^"]*"|[0-9][0-9.e+-]*)'), r"\1TIME"),
    (re.compile(r"\b((?:call|toolu)_)[A-Za-z0-9]{24}\b"), r"\1ID"),
    (re.compile(r"\b([a-z]+[-_])[0-9a-f]{32}\b"), r"\1ID"),
    (re.compile(r'"[0-9a-f]{32}"'), '"ID"'),
]  # fmt: skip
"""Patterns of ids and times, with the text in their place."""
TEXTUAL = ("application/json", "application/x-ndjson", "text/")
MAX_DIFFERENCES = 20


def make_sites(top: Path) -> dict[str, Any]:
    """Return the applications by name. Only this function imports the product and the helpers of its tests."""
    from dataclasses import replace

    import torch

    from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
    from tests import tiny
    from tests.server.dialects.heads import classifier
    from tests.server.fake_client import INFO, FakeEngine
    from tests.server.inline_engine import BatchedEngine
    from tests.server.serving import build_site, tiny_config, write_tokenizer

    greedy = SamplingDefaults(temperature=0.0)

    def served(engine: Any, folder: Path, template: str | None = None, **options: Any) -> Any:
        length = engine.engine_info.max_model_len
        named = {"config": engine.config, "sampling_defaults": greedy, "max_model_len": length, **options}
        return build_site(folder, engine, template=template, **named)

    def network(folder: Path, dtype: torch.dtype = torch.float32, length: int | None = None) -> BatchedEngine:
        if json.loads((folder / "config.json").read_text())["model_type"] == "bert":
            file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            file["model"]["vocab"] = word_pieces()
            (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
        engine = BatchedEngine(folder=folder, dtype=dtype, arithmetic="float32", options={"max_num_seqs": 16})
        engine.config = engine.model_config
        length = length or engine.model_config.max_model_len
        engine.engine_info = replace(engine.engine_info, max_model_len=length)
        return engine

    def scripted(name: str, text: str) -> FakeEngine:
        (top / name).mkdir()
        write_tokenizer(top / name)
        ids = tuple(text.encode())
        config = replace(tiny_config(), max_model_len=4096)
        return FakeEngine(script=ids, eos_after=len(ids), engine_info=replace(INFO, max_model_len=4096), config=config)

    llama = tiny.make_variant("llama-gqa", top / "llama", max_position_embeddings=CONTEXT)
    chat = network(llama, torch.bfloat16, CONTEXT)
    exact = network(llama, length=CONTEXT)
    bart, bert = (network(tiny.make_variant(name, top / name)) for name in ("bart", "bert"))
    labels_by_id = {0: "no", 1: "maybe", 2: "yes"}
    ranks = network(classifier(top / "ranks", num_labels=1))
    labels = network(classifier(top / "labels", id2label=labels_by_id))
    caller, writer = scripted("caller", CALLS), scripted("writer", TEXT)
    embed = tiny.make_variant("bert", top / "embed")
    for file, value in EMBEDDING_FILES.items():
        (embed / file).parent.mkdir(exist_ok=True)
        (embed / file).write_text(json.dumps(value), encoding="utf-8")
    return {
        "chat": served(chat, llama, TEMPLATE),
        "thinker": served(chat, llama, OPEN_THOUGHT),
        "exact": served(exact, llama, PLAIN),
        "bare": served(exact, llama),
        "caller": served(caller, top / "caller", TEMPLATE),
        "writer": served(writer, top / "writer", PLAIN),
        "guarded": served(writer, top / "writer", PLAIN, api_key=("secret",)),
        **{name: served(engine, engine.folder) for name, engine in zip(("bart", "bert"), (bart, bert), strict=True)},
        "embed": served(network(embed), embed),
        "ranks": served(ranks, ranks.folder),
        "labels": served(labels, labels.folder),
    }


EMBEDDING_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True},
    "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": "text: "}},
}
"""Files of a sentence-transformers folder: mean pooling, normalised vectors, and two prompts."""


def word_pieces() -> dict[str, int]:
    """Return a vocabulary for BERT: each training of one puts the pieces into another order."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:!?;"
    words = ("once", "upon", "the", "wolf", "little", "there", "bears", "how", "is", "##er", "##re", "##ed")
    pieces = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    return {piece: number for number, piece in enumerate(pieces)}


def without_company(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines without the fields that may depend on other requests: numbers of cached tokens, and the order of a
    stream's choices.
    """
    return [{**line, "answer": _by_choice(CACHED.sub(r"\1CACHED", line["answer"]))} for line in lines]


def _by_choice(answer: str) -> str:
    """Return a stream of several choices with the events of each together, without the usage so far."""
    events = answer.split("\n\n")
    choices = [CHOICE.search(event) for event in events]
    if len({choice[1] for choice in choices if choice is not None}) < 2:
        return answer
    numbers = [-1 if choice is None else int(choice[1]) for choice in choices]
    events = [event if number < 0 else USAGE.sub("", event) for number, event in zip(numbers, events, strict=True)]
    return "\n\n".join(event for _, event in sorted(zip(numbers, events, strict=True), key=lambda pair: pair[0]))


def answer_of(response: Any) -> str:
    """Return the normalised text of an answer, or the length and the digest of its bytes if it is no text."""
    kind = response.headers.get("content-type", "")
    if not kind.startswith(TEXTUAL):
        return f"{kind}, {len(response.content)} bytes, sha256 {hashlib.sha256(response.content).hexdigest()}"
    text = response.content.decode()
    for pattern, placeholder in NUMBERS:
        text = pattern.sub(placeholder, text)
    return text if kind.startswith("application/json") else f"{kind}\n\n{text}"


async def send(site: Any, request: Request) -> dict[str, Any]:
    """Send one request, and return the fields of its line."""
    response = await site.http.request(request.method, request.path, content=request.content, headers=request.headers)
    return {
        "site": request.site,
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
        "body": request.content.decode(errors="surrogateescape"),
        "status": response.status_code,
        "answer": answer_of(response),
    }


async def record(sites: dict[str, Any], at_once: int = 1) -> list[dict[str, Any]]:
    """Return the lines of all requests, sent `at_once` at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(request: Request) -> dict[str, Any]:
        async with room:
            return await send(sites[request.site], request)

    if at_once == 1:
        return [await one(request) for request in all_requests()]
    return await asyncio.gather(*map(one, all_requests()))


def run(at_once: int = 1) -> list[dict[str, Any]]:
    """Record in this process, with networks in a temporary folder."""

    async def recorded(top: Path) -> list[dict[str, Any]]:
        sites = make_sites(top)
        try:
            return await record(sites, at_once)
        finally:
            for site in sites.values():
                await site.http.aclose()

    with tempfile.TemporaryDirectory() as top:
        return asyncio.run(recorded(Path(top)))


def differences(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield one text for each request with different lines, with a short diff of the answers."""
    for number, (first, second) in enumerate(zip_longest(ours, theirs)):
        if first == second:
            continue
        if first is None or second is None:
            yield f"request {number} is in one file only"
            continue
        title = f"request {number}: {first['site']} {first['method']} {first['path']} {first['body'][:300]}"
        other = [name for name in first if first[name] != second.get(name) and name != "answer"]
        told = [f"{name}: {first[name]!r} != {second.get(name)!r}"[:300] for name in other]
        yield "\n".join([title, *told, *_short_diff(first["answer"], second["answer"])])


def _short_diff(first: str, second: str) -> list[str]:
    ours, theirs = (re.sub(r"(?<=[,{}\[\]])", "\n", text).split("\n") for text in (first, second))
    changed = list(difflib.unified_diff(ours, theirs, n=1, lineterm=""))[2:]
    return [line[:200] for line in changed[:12]]


def _lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.recorder", description="Record 2,000 answers.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="send the requests, and write their answers")
    what.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="compare two files")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="requests that are sent at one time")
    parser.add_argument("--ignore-company", action="store_true", help="leave out what other requests change")
    given = parser.parse_args(arguments)
    if given.out is not None:
        lines = run(given.at_once)
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return 0
    files = [_lines_of(file) for file in given.compare]
    found = list(differences(*(map(without_company, files) if given.ignore_company else files)))
    print(*found[:MAX_DIFFERENCES], sep="\n\n")
    print(f"{len(found)} answers differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
