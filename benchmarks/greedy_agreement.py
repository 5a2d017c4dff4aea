"""Compare the greedy tokens of GGUF files with llama.cpp's for the same texts.

Lightwell continues each prompt greedily; llama.cpp predicts the next token after each prefix of that text, so that
one difference does not change the later tokens. Both have rounding errors; llama.cpp's are larger, as it rounds
activations to eight bits. The differences of their log-probabilities of our tokens measure the errors. A token counts
if it leads by more than twice the 99th percentile of these differences, because it and the next one may both have the
error. Exit status 1 if such a token differs, or if half of the tokens or more do not count.
"""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.comparison import table
from benchmarks.load import percentile
from benchmarks.models import GGUF_MODELS, add_folders
from benchmarks.peers.engines import STORED, Engine, Setup, lightwell, llama

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a village by the sea, there lived",
    "To bake bread you need flour,",
    "def fibonacci(n):\n",
    "The first law of thermodynamics states that",
    "In 1969 two men",
    "Dear Sir or Madam, I am writing to",
    "The main difference between a frog and a toad is",
    "She opened the letter slowly, and",
)
NUM_LIKELIEST = 5


@dataclass(frozen=True)
class Place:
    """One token of a continuation."""

    prefix: list[int]
    """The token ids before it."""
    token_id: int
    """Our token, the likeliest."""
    logprob: float
    """Its log-probability."""
    margin: float
    """By how much it leads, in nats."""


def _post(engine: Engine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{engine.server.url}{path}", json=body, timeout=300).raise_for_status().json()
    return answer


def continued(engine: Engine, prompt: str, num_tokens: int) -> list[Place]:
    """Return the greedy continuation of a prompt by our server."""
    prefix = _post(engine, "/tokenize", {"model": engine.model, "prompt": prompt})["tokens"]
    body = {"model": engine.model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    asked_for = {**body, "logprobs": NUM_LIKELIEST, "return_token_ids": True}
    (choice,) = _post(engine, "/v1/completions", asked_for)["choices"]
    places = []
    for i, (token_id, likeliest) in enumerate(
        zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True)
    ):
        first, second, *_ = sorted(likeliest.values(), reverse=True)
        places.append(Place([*prefix, *choice["token_ids"][:i]], token_id, first, first - second))
    return places


def asked(engine: Engine, prefix: list[int]) -> dict[int, float]:
    """Return llama.cpp's log-probabilities of the likeliest tokens after a prefix, by their ids."""
    body = {"prompt": prefix, "n_predict": 1, "n_probs": NUM_LIKELIEST, "temperature": 0, "cache_prompt": True}
    found = _post(engine, "/completion", body)["completion_probabilities"][0]["top_logprobs"]
    return {each["id"]: each["logprob"] for each in found}


def compare(name: str, setup: Setup, num_tokens: int) -> tuple[list[str], bool]:
    """Return a row of the table, and whether more than half of the tokens count and all of these are equal."""
    with lightwell(setup) as engine:
        places = [place for prompt in PROMPTS for place in continued(engine, prompt, num_tokens)]
    with llama(setup) as engine:
        theirs = [asked(engine, place.prefix) for place in places]
    both = list(zip(places, theirs, strict=True))
    differences = [abs(place.logprob - other[place.token_id]) for place, other in both if place.token_id in other]
    equal = [max(other, key=lambda token_id: other[token_id]) == place.token_id for place, other in both]
    error = percentile(differences, 0.99)
    counted = [same for place, same in zip(places, equal, strict=True) if place.margin > 2 * error]
    row = [name, len(places), sum(equal), f"{error:.2f}", len(counted), sum(counted)]
    return [str(each) for each in row], all(counted) and len(counted) > len(places) / 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2-q4_1"], choices=[*GGUF_MODELS])
    parser.add_argument("--tokens", type=int, default=100, help=f"tokens of each of {len(PROMPTS)} continuations")
    add_folders(parser)
    options = parser.parse_args()
    head = ["model", "tokens", "equal", "difference of log-probabilities, p99", "leads by twice that", "of these equal"]
    setups = {name: Setup(GGUF_MODELS[name].folder(options.cache), STORED, options.home) for name in options.models}
    found = [compare(name, setup, options.tokens) for name, setup in setups.items()]
    print(table([head, *(row for row, _ in found)]))
    return 0 if all(is_equal for _, is_equal in found) else 1


if __name__ == "__main__":
    sys.exit(main())
