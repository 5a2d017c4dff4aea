"""Compare answers to single requests and under load bit for bit, and measure the cost of batch invariance.

1. Over HTTP, for the built-in and the 124M model, in float32 and bfloat16, with 8-bit weights and without: seeded
   completions (tokens, and the log-probabilities of the 20 likeliest), greedy ones (only tokens; no logits are
   written) and logits of the prompt's last positions (the whole vocabulary, as bytes).
   Each request is sent three times: as the only request to a server without a prefix cache; with 31 others in flight;
   and with 31 others to a server with steps too small for all prompts and a prefix cache that holds their beginnings.
2. In process, the 124M model: steps of the network with and without batch invariance alternate. The ratio is the median
   over the pairs, so that variations of the machine's speed affect both. Of two identical networks, the first one
   loaded was slower by 4 to 13 %. Therefore half of the pairs come from a process that loads them in the opposite
   order; the ratio is the geometric mean of both halves' medians.

Exits with status 1 if an answer differs or the cost exceeds the target. The second part needs an idle machine.

    python -m benchmarks.determinism --quick
    python -m benchmarks.determinism --only answers --models "built-in, float32" "int8" --threads 1 --seed 6
"""

import argparse
import asyncio
import hashlib
import itertools
import multiprocessing
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import httpx

from benchmarks.checkpoint import make_checkpoint
from benchmarks.models import add_cache
from benchmarks.questions import Question, ask, first_difference
from benchmarks.step_times import timed_pairs
from lightwell.server.lifecycle.worker_process import prepare_environment
from tests.support.accuracy import Network
from tests.support.processes import Server, serve
from tests.support.wire import samples

CLIENTS = 32
DTYPES = ("float32", "bfloat16")
QUANTIZED = {"": [], ", int8": ["--quantize", "int8"]}
"""The suffix of a model's label for each quantization, and the server's arguments."""
ASKED = {"float32": 1.10, "bfloat16": 1.03}
"""The cost that is aimed at: time with batch invariance over time without."""
COMMON_IDS = 4000
"""Token ids that both vocabularies have."""
READY_WITHIN = 900.0
"""Seconds until the server must be ready: the machine may be busy."""
SMALL_STEP = 96
"""Tokens of a step: fewer than a prompt may have, so that prompts are read in pieces."""
LOGIT_POSITIONS = [-4, -3, -2, -1]
CASES = {"decode, 1": (1, 1), "decode, 8": (8, 1), "decode, 32": (32, 1), "prompt of 512": (1, 512)}
"""Sequences of a step, and rows of each."""


def questions(num_prompts: int, seed: int) -> list[Question]:
    """Return the questions: of each prompt continuations and logits. Four prompts at a time begin alike, every fifth
    four are long.
    """
    draw = random.Random(seed)
    asked = []
    for number in range(num_prompts):
        if number % 4 == 0:
            shortest, longest = (8, 160) if number % 20 else (250, 410)
            beginning = [draw.randrange(COMMON_IDS) for _ in range(draw.randrange(shortest, longest))]
        prompt = beginning + [draw.randrange(COMMON_IDS) for _ in range(draw.randrange(1, 64))]
        sampling = {"max_tokens": 24, "temperature": 0.9, "seed": number, "logprobs": 20, "ignore_eos": True}
        asked.append(Question("completion", "/v1/completions", {"prompt": prompt, **sampling}))
        greedy = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
        asked.append(Question("greedy", "/v1/completions", {"prompt": prompt, **greedy}))
        logits = {"input": prompt, "points": ["logits"], "positions": LOGIT_POSITIONS}
        asked.append(Question("logits", "/v1/trace", logits, "application/x-npy"))
    return asked


async def answers(server: Server, asked: Sequence[Question], clients: int) -> list[object]:
    """Return the answer to each question, with `clients` in flight; bytes as their digest."""
    found: list[object] = [None] * len(asked)
    order = list(range(len(asked)))
    if clients > 1:
        random.Random(clients).shuffle(order)
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def one_client() -> None:
            while order:
                index = order.pop(0)
                answer = await ask(client, asked[index])
                found[index] = hashlib.sha256(answer).hexdigest() if isinstance(answer, bytes) else answer

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one_client())
    return found


def prefix_hits(server: Server) -> int:
    """Return the number of tokens that the prefix cache has saved the server."""
    return int(samples(httpx.get(f"{server.url}/metrics").text)["lightwell_prefix_cache_hits_total"])


def compare(
    label: str, name: str, asked: Sequence[Question], alone: Sequence[object], found: Sequence[object]
) -> list[str]:
    """Print a row of the table for each kind of answer, and return the first difference of each kind that differs."""
    differences = []
    for kind in sorted({question.kind for question in asked}):
        pairs = [(a, b) for question, a, b in zip(asked, alone, found, strict=True) if question.kind == kind]
        different = [pair for pair in pairs if pair[0] != pair[1]]
        print(f"| {label} | {name} | {kind} | {len(pairs)} | {len(different)} |", flush=True)
        if different:
            differences.append(f"{label}, {name}, {kind}: {first_difference(*different[0])}")
    return differences


def compare_over_http(model: Sequence[str], label: str, asked: Sequence[Question]) -> bool:
    """Print the rows of a model. Return True when nothing differs."""
    common = [*model, "--log-level", "warning"]
    with serve([*common, "--no-prefix-caching"], READY_WITHIN) as server:
        alone = asyncio.run(answers(server, asked, 1))
        crowd = asyncio.run(answers(server, asked, CLIENTS))
    with serve([*common, "--max-num-batched-tokens", str(SMALL_STEP)], READY_WITHIN) as server:
        pieces = asyncio.run(answers(server, asked, CLIENTS))
        before = prefix_hits(server)
        again = asyncio.run(answers(server, asked, CLIENTS))
        hits = prefix_hits(server) - before
    found = [("among 31 others", crowd), ("in pieces", pieces), (f"with {hits} tokens from the prefix cache", again)]
    differences = [each for name, told in found for each in compare(label, name, asked, alone, told)]
    for each in differences:
        print(f"\n{each}\n")
    return hits > 0 and not differences


def invariant_and_not(
    folder: Path, dtype: str, rounds: int, threads: int | None, invariant_first: bool
) -> dict[str, list[tuple[float, float]]]:
    """Return `rounds` pairs of seconds for each case: (step with batch invariance, step without).

    invariant_first: load the batch-invariant network first.
    """
    networks = {
        which: Network(folder, dtype, "none", threads, batch_invariant=which)
        for which in (invariant_first, not invariant_first)
    }
    return timed_pairs(networks[True], networks[False], CASES, rounds)


def measure_cost(folder: Path, dtype: str, rounds: int, threads: int | None) -> bool:
    """Print a row of the table for each case. Return True when none costs more than the target, to two digits."""
    halves = []
    for invariant_first in (True, False):
        arguments = (folder, dtype, -(-rounds // 2), threads, invariant_first)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
            halves.append(fresh_process.submit(invariant_and_not, *arguments).result())
    is_cheap = True
    for case in CASES:
        pairs = [pair for half in halves for pair in half[case]]
        with_, without = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.geometric_mean(
            statistics.median(one / other for one, other in half[case]) for half in halves
        )
        is_cheap &= round(ratio, 2) <= ASKED[dtype]
        print(f"| {dtype} | {case} | {with_:.1f} | {without:.1f} | {ratio:.2f} | {ASKED[dtype]:.2f} |", flush=True)
    return is_cheap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cache(parser)
    parser.add_argument("--prompts", type=int, default=200, help="of each model")
    parser.add_argument("--rounds", type=int, default=41, help="pairs of steps that are timed")
    parser.add_argument("--quick", action="store_true", help="40 prompts, 15 rounds")
    parser.add_argument(
        "--threads", type=int, help="of servers and steps; one gives steadier figures on a busy machine"
    )
    parser.add_argument("--only", choices=("answers", "cost"))
    parser.add_argument("--models", nargs="*", default=[""], metavar="WORD", help="whose label holds one of these")
    parser.add_argument("--seed", type=int, default=5, help="of the prompts")
    options = parser.parse_args()
    if options.quick:
        options.prompts, options.rounds = min(options.prompts, 40), min(options.rounds, 15)
    folder = make_checkpoint(options.cache)
    threads = [] if options.threads is None else ["--threads", str(options.threads)]
    is_same = is_cheap = True
    if options.only != "cost":
        asked = questions(options.prompts, options.seed)
        print("| model | asked | answers | number | different |\n|---|---|---|---|---|")
        models = {"built-in": [], "124M": [str(folder)]}
        for dtype, (name, model), (suffix, quantized) in itertools.product(DTYPES, models.items(), QUANTIZED.items()):
            label = f"{name}, {dtype}{suffix}"
            if any(word in label for word in options.models):
                is_same &= compare_over_http([*model, "--dtype", dtype, *quantized, *threads], label, asked)
    if options.only != "answers":
        prepare_environment(options.threads)
        print("\n| dtype | step | ms, invariant | ms, not | ratio | asked |\n|---|---|---|---|---|---|")
        for dtype in DTYPES:
            is_cheap &= measure_cost(folder, dtype, options.rounds, options.threads)
    sys.exit(0 if is_same and is_cheap else 1)


if __name__ == "__main__":
    main()
