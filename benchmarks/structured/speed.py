"""Measure the speed with grammars: tokens per second of streams, in process and next to vLLM, and the first token.

    python -m benchmarks.structured.speed --tables streams first vllm

`streams`: eight streams of SmolLM2 with one schema each, compared with the same prompts and numbers of tokens without
schemas, in turns; with one step per token, and with forced tokens accepted at once. `first`: time to the first token
over HTTP with a new grammar, a cached one and none. `vllm`: tokens per second of valid answers at several numbers of
streams, with the same schemas and weights (bfloat16), in turns.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.comparison import OURS, ratio, table
from benchmarks.load import closed_loop, run, stream_completion
from benchmarks.models import add_folders
from benchmarks.peers.engines import ENGINES, Setup
from benchmarks.subjects import all_of
from lightwell.model.checkpoint.resolve import resolve, smollm2_file
from tests.support.processes import Server, serve

STREAMS = 8
BARS = {"a step for each token": 0.97, "forced tokens at once": 1.15}
"""Tokens a second over those without a grammar."""
FIRST = {"new": 10.0, "cached": 1.0}
"""Most milliseconds that a grammar may add to the time to the first token."""
CHOSEN = ", chosen"
"""Suffix of the names of requests for log-probabilities, which take a step for each token: the first one is chosen by
the model.
"""
NUM_FIELDS = 50
"""Number of fields of the schemas in the measurement of the first token."""


def record(number: int) -> dict[str, Any]:
    """Return the schema of a record with about 150 tokens; each `number` has a different schema."""
    text = {"type": "string", "pattern": "^[a-zA-Z ]{25,40}$"}
    properties: dict[str, Any] = {f"{name}_{number}": text for name in ("title", "author", "publisher")}
    properties[f"summary_{number}"] = {"type": "string", "minLength": 40, "maxLength": 90}
    for name in ("year", "pages", "price"):
        properties[f"{name}_{number}"] = {"type": "integer", "minimum": 0, "maximum": 9999}
    properties[f"binding_{number}"] = {"enum": ["hardcover", "paperback", "electronic", "audio recording"]}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def fields(number: int) -> dict[str, Any]:
    """Return a schema of many fields; no two values of `number` share a field name."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 40},
        {"type": "integer", "minimum": 0, "maximum": 100},
        {"enum": ["yes", "no", "perhaps"]},
        {"type": "array", "items": {"type": "number"}, "maxItems": 4},
    ]
    properties = {f"field_{number}_{index}": kinds[index % len(kinds)] for index in range(NUM_FIELDS)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def prompt(number: int) -> str:
    return f"Describe book number {number} as JSON:"


class InProcess:
    def __init__(self, model: str) -> None:
        from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
        from lightwell.model.tokenization.tokenizer import Tokenizer
        from lightwell.server.engine.config import EngineConfig
        from lightwell.server.engine.engine import Engine

        folder = resolve(model, None)
        self._tokenizer = Tokenizer.from_folder(folder)
        self._engine = Engine.from_folder(EngineConfig(model=folder))
        self._grammars = [json_schema_grammar(record(number)) for number in range(STREAMS)]
        self._uid = 0

    def rate(self, lengths: Sequence[int], seed: int, *, forced: bool | None) -> tuple[float, list[int]]:
        """Return tokens a second, and the tokens of each stream: with grammars unless `forced` is None, and at most
        `lengths`.
        """
        from lightwell.server.engine.messages.request import GenerateTask
        from lightwell.server.engine.messages.sampling_params import SamplingParams
        from tests.server.engine.driving import request

        scheduler = self._engine._scheduler
        scheduler.config = replace(scheduler.config, takes_forced=bool(forced))
        first = self._uid
        for number, length in enumerate(lengths):
            sampling = SamplingParams(max_tokens=length, seed=seed + number, temperature=1.0, ignore_eos=forced is None)
            grammar = None if forced is None else self._grammars[number]
            ids = self._tokenizer.encode(prompt(seed + number)).ids
            self._engine.add_request(request(self._uid, ids, GenerateTask(sampling=sampling, grammar=grammar)))
            self._uid += 1
        counts, running, started = [0] * len(lengths), len(lengths), time.perf_counter()
        while running:
            if not self._engine.has_work:  # a grammar is being compiled
                time.sleep(0.0005)
                continue
            for output in self._engine.step().outputs:
                counts[output.uid - first] += output.token_id is not None
                running -= output.finish_reason is not None
        return sum(counts) / (time.perf_counter() - started), counts


def streams(model: str, turns: int) -> bool:
    """Print the tokens a second of streams with grammars over those without; return whether the bars are met."""
    engine = InProcess(model)
    ratios: dict[str, list[float]] = {name: [] for name in BARS}
    rates: dict[str, list[float]] = {"none": [], **{name: [] for name in BARS}}
    for turn in range(-1, turns):  # the first warms up
        seed = 1000 * (turn + 1)
        for name, forced in zip(BARS, (False, True), strict=True):
            rate, lengths = engine.rate([400] * STREAMS, seed, forced=forced)
            free, _ = engine.rate(lengths, seed, forced=None)
            if turn >= 0:
                rates[name].append(rate)
                rates["none"].append(free)
                ratios[name].append(rate / free)
    rows = [[f"{STREAMS} streams", "tokens/s", "over those without", "turns", "bar"]]
    rows.append(["no grammar", f"{statistics.median(rates['none']):.0f}", "", "", ""])
    for name, each in ratios.items():
        shown = ", ".join(f"{value:.2f}" for value in each)
        medians = [f"{statistics.median(rates[name]):.0f}", f"{statistics.median(each):.2f}"]
        rows.append([name, *medians, shown, str(BARS[name])])
    print(table(rows) + f"\n\n{sum(lengths) / STREAMS:.0f} tokens an answer\n", flush=True)
    return all(statistics.median(each) >= BARS[name] for name, each in ratios.items())


def first_tokens(model: str, turns: int) -> bool:
    """Print the times to the first token with grammars and without; return whether the bars are met. Tokens that a
    grammar forces at the start are sent before the prompt is read, so the first sampled token is timed too.
    """
    names = ("none", "new", "cached")
    seconds: dict[str, list[float]] = {name + kind: [] for kind in ("", CHOSEN) for name in names}
    with serve([model, "--served-model-name", "model"]) as server:
        for turn in range(-3, turns):
            for name, each in seconds.items():
                number = {"new": turn + 1000, "new" + CHOSEN: turn + 5000}.get(name, 0)
                took = first_token(server, None if "none" in name else number, turn, CHOSEN in name)
                if turn >= 0:
                    each.append(took)
    middle = {name: 1e3 * statistics.median(each) for name, each in seconds.items()}
    added = {name: took - middle["none" + (CHOSEN if CHOSEN in name else "")] for name, took in middle.items()}
    rows = [["grammar", "first token, ms", "more than with none", "bar"]]
    for name, took in middle.items():
        rows.append([name, f"{took:.2f}", f"{added[name]:+.2f}", f"{FIRST[name]:g}" if name in FIRST else ""])
    print(table(rows) + "\n", flush=True)
    return all(added[name] <= most for name, most in FIRST.items())


def first_token(server: Server, number: int | None, turn: int, chosen: bool) -> float:
    """Return the seconds to the first token of a request with the grammar of that number, or with none."""
    body: dict[str, Any] = {"model": "model", "prompt": prompt(turn), "max_tokens": 4, "temperature": 0}
    if chosen:
        body["logprobs"] = 1
    if number is not None:
        body["structured_outputs"] = {"json": fields(number)}
    return run(stream_completion(server.host, server.port, body)).time_to_first_token


def written_out(cache: Path) -> Path:
    """Return SmolLM2's checkpoint in vLLM's format, in bfloat16, and make it if `cache` does not have it."""
    folder = cache / "smollm2-135m-bfloat16"
    if not (folder / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, GgufConfig

        stored = resolve("smollm2", None)
        file = smollm2_file()
        plain = GgufConfig(dequantize=True)
        network = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=plain
        )
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / name).write_bytes((stored / name).read_bytes())
        network.save_pretrained(folder)
    return folder


def beside_vllm(options: argparse.Namespace) -> None:
    """Print the tokens a second of valid answers, ours over vLLM's, at each number of streams."""
    setup = Setup(written_out(options.cache), "bfloat16", options.home)
    rows = [["streams", "engine", "tokens/s of valid answers", "valid", "ours / vLLM"]]
    with all_of([name for name in ENGINES if name != "llama.cpp"], setup) as subjects:
        for concurrency in options.concurrency:
            rates: dict[str, list[float]] = {subject.name: [] for subject in subjects}
            valid: dict[str, list[bool]] = {subject.name: [] for subject in subjects}
            for turn in range(-1, options.turns):
                for subject in subjects if turn % 2 else reversed(subjects):
                    rate, judged = valid_rate(subject, concurrency, options.requests, 1000 * (turn + 1))
                    if turn >= 0:
                        rates[subject.name].append(rate)
                        valid[subject.name] += judged
            for name, each in rates.items():
                over = f"{ratio(rates, 'vllm'):.2f}" if name == OURS and "vllm" in rates else ""
                share = f"{sum(valid[name])} of {len(valid[name])}"
                rows.append([str(concurrency), name, f"{statistics.median(each):.0f}", share, over])
    print(table(rows), flush=True)


def valid_rate(subject: Any, concurrency: int, requests: int, seed: int) -> tuple[float, list[bool]]:
    """Return the tokens a second of answers that their schemas admit, and which answers these are."""
    count = concurrency * requests
    asked = {"model": subject.engine.model, "max_tokens": 400, "temperature": 1.0}
    bodies = [
        {**asked, "prompt": prompt(each), "seed": each, "structured_outputs": {"json": record(each % STREAMS)}}
        for each in range(seed, seed + count)
    ]
    subject.engine.resume()
    try:
        server = subject.engine.server
        load = run(closed_loop(server.host, server.port, bodies, concurrency))
    finally:
        subject.engine.pause()
    judged = [is_valid(timeline.text) for timeline in load.timelines]
    tokens = sum(each.completion_tokens for each, good in zip(load.timelines, judged, strict=True) if good)
    return tokens / load.seconds, judged


def is_valid(text: str) -> bool:
    """Return whether one of the schemas, which have no name in common, admits an answer."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return any(jsonschema.Draft202012Validator(record(number)).is_valid(value) for number in range(STREAMS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tables", nargs="+", choices=["streams", "first", "vllm"], default=["streams", "first", "vllm"]
    )
    parser.add_argument("--model", default="smollm2", help="of the first two tables")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--first-turns", type=int, default=30)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3, help="of each stream in a turn beside vLLM")
    add_folders(parser)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores\n")
    met = True
    if "streams" in options.tables:
        met &= streams(options.model, options.turns)
    if "first" in options.tables:
        met &= first_tokens(options.model, options.first_turns)
    if "vllm" in options.tables:
        beside_vllm(options)
    return int(not met)


if __name__ == "__main__":
    raise SystemExit(main())
