"""Measure the speed of speculation: the ratio of output tokens per second with `--speculation auto` and `off`.

Both engines have the same network, in this process, and answer the same requests in turn; their answers are compared.
The prompts' blocks are in the prefix cache, so a figure is nearly that of decoding only. The copies repeat a
paragraph, a JSON object with a changed value, and a function with a renamed argument (the last one also as
OpenAI's `prediction`); `prose` is sampled. A ratio is the median over the turns.

`--draft MODEL` compares `draft` with `off`: SmolLM2 with eight times as many blocks, and SmolLM2 as its draft model.

    python -m benchmarks.speculation --models smollm2-bf16 smollm2-q4_1
    python -m benchmarks.speculation --models smollm2-deep --draft smollm2-bf16 --kinds prose --tokens 48 --turns 3
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.comparison import machine
from benchmarks.models import GGUF_MODELS, add_cache
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.loading import load
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams

_PARAGRAPH = (
    "The tide came in slowly that evening, and the men of Port Alder pulled their seven boats onto the shingle "
    "before the light failed. Old Maren counted the ropes twice, as her mother had done, and wrote the number 41 in "
    "the harbour book. Nobody spoke of the eighth boat. Its place between the two posts stayed empty, and the children "
    "walked around it as if it were still there."
)
_JSON = """{
  "id": 4711,
  "name": "Port Alder harbour",
  "boats": [
    {"name": "Gull", "length": 7.5, "crew": 3, "engine": "diesel"},
    {"name": "Heron", "length": 9.1, "crew": 4, "engine": "diesel"},
    {"name": "Petrel", "length": 6.8, "crew": 2, "engine": "electric"},
    {"name": "Skua", "length": 8.2, "crew": 3, "engine": "diesel"}
  ],
  "open": true
}"""
_CODE = '''def count_boats(harbour, kind):
    """Return the number of boats of a kind."""
    total = 0
    for boat in harbour.boats:
        if boat.kind == kind and not boat.is_lost:
            total += 1
    if total == 0:
        raise ValueError("no boats of this kind")
    return total
'''
_COPIES: Mapping[str, tuple[str, str]] = {
    "quotation": (f"Repeat this text exactly, word for word:\n\n{_PARAGRAPH}", ""),
    "JSON edit": (f"Change the id to 4712 and print the whole JSON object again:\n\n{_JSON}", ""),
    "code edit": (f"Print this code with the argument kind renamed to sort:\n\n{_CODE}", f"```python\n{_CODE}```"),
}
_SUBJECTS = ("a lighthouse", "two brothers", "the first snow", "a clockmaker", "a long train journey", "an old map")


def requests(kind: str, tokenizer: Tokenizer, num_clients: int, turn: int, num_tokens: int) -> list[EngineRequest]:
    """Return one request for each client."""
    found = []
    for i in range(num_clients):
        text, prediction, temperature = f"Write a story about {_SUBJECTS[(turn + i) % len(_SUBJECTS)]}.", "", 0.8
        if kind in _COPIES:
            (text, prediction), temperature = _COPIES[kind], 0.0
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        sampling = SamplingParams(
            max_tokens=num_tokens, seed=100 * turn + i, temperature=temperature, eos_token_ids=tokenizer.eos_token_ids
        )
        task = GenerateTask(sampling=sampling, prediction=tuple(tokenizer.encode(prediction, False).ids))
        prompt = tuple(tokenizer.encode(chat, False).ids)
        found.append(EngineRequest(uid=i + 1, prompt_token_ids=prompt, task=task, arrival_time=time.monotonic()))
    return found


def answered(engine: Engine, asked: Sequence[EngineRequest]) -> tuple[float, dict[int, list[int]]]:
    """Return the tokens per second, and the tokens of each request."""
    tokens: dict[int, list[int]] = {each.uid: [] for each in asked}
    for each in asked:
        engine.add_request(each)
    began = time.perf_counter()
    while engine.has_work:
        for output in engine.step().outputs:
            if output.token_id is not None:
                tokens[output.uid].append(output.token_id)
    return sum(map(len, tokens.values())) / (time.perf_counter() - began), tokens


def engines_of(folder: Path, draft: Path | None) -> dict[str, Engine]:
    """Return an engine for each source of drafts, around one network."""
    sources = ("off", "auto" if draft is None else "draft")
    model, cache, config, most = load(
        EngineConfig(model=folder, max_model_len=1024, kv_cache_bytes=512 << 20, draft_model=draft)
    )
    return {source: _engine(model, cache.num_blocks, config, source, most) for source in sources}


def _engine(model: Transformer, num_blocks: int, config: EngineConfig, source: str, most: int) -> Engine:
    cache = KVCache(model.cache_config, num_blocks, config.block_size, model.dtype, model.device,
                    keys_in_rows=model.keys_in_rows)  # fmt: skip
    return Engine(model, cache, dataclasses.replace(config, speculation=source), most)


def measure(folder: Path, draft: Path | None, kinds: Sequence[tuple[str, int]], turns: int, num_tokens: int) -> None:
    """Print a line for each kind of text and number of clients."""
    tokenizer, engines = Tokenizer.from_folder(folder), engines_of(folder, draft)
    off, on = engines
    for kind, num_clients in kinds:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        before = engines[on].stats()
        for turn in range(turns + 1):
            answers = {}
            for name in (off, on) if turn % 2 else (on, off):
                asked = requests(kind, tokenizer, num_clients, turn, num_tokens)
                rate, answers[name] = answered(engines[name], asked)
                if turn:  # the first one fills the prefix cache
                    rates[name].append(rate)
            assert answers[off] == answers[on], "drafts changed an answer"
        stats = engines[on].stats()
        ratio = statistics.median(one / other for one, other in zip(rates[on], rates[off], strict=True))
        drafts = (
            stats.drafts_accepted_total - before.drafts_accepted_total,
            stats.drafts_rejected_total - before.drafts_rejected_total,
        )
        rate = statistics.median(rates[off])
        print(f"| {kind} | {num_clients} | {rate:.0f} | {ratio:.2f} | {drafts[0]} / {drafts[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2-bf16"], choices=[*GGUF_MODELS])
    parser.add_argument("--kinds", nargs="+", default=[*_COPIES, "prose"], choices=[*_COPIES, "prose"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--draft", choices=[*GGUF_MODELS])
    parser.add_argument("--turns", type=int, default=7)
    add_cache(parser)
    options = parser.parse_args()
    print(machine())
    for name in options.models:
        print(f"\n| {name} | clients | off: tokens/s | over off | accepted / rejected |\n|---|---|---|---|---|")
        kinds = [(kind, count) for count in options.clients for kind in options.kinds]
        draft = None if options.draft is None else GGUF_MODELS[options.draft].folder(options.cache)
        measure(GGUF_MODELS[name].folder(options.cache), draft, kinds, options.turns, options.tokens)


if __name__ == "__main__":
    main()
