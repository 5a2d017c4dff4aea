"""Measure the cost of further questions about one input: sixteen questions about 512 tokens, compared with one.

    python -m benchmarks.judgements.decisions --turns 5 --question-tokens 48 64

Over HTTP, on SmolLM2-135M-Instruct with the server's defaults. Each turn sends one question, then sixteen, each time
about an input that the prefix cache does not hold. The bar for the ratio of their times is 1.15 times the ratio of the
tokens that must be computed: (n + 16 q) / (n + q) for questions of q tokens and an input of n tokens with the chat
template. The position of the input's end within a cache block may matter, so turns use different lengths around 512.
Exit status 1 if the median misses the bar.
"""

import argparse
import random
import statistics
import sys
import time
from typing import Any

import httpx

from tests.support.processes import Server, serve
from tests.support.wire import samples

INPUT_TOKENS = 512
QUESTIONS = 16
SLACK = 1.15
WORDS = ("river", "stone", "lamp", "winter", "bread", "silver", "window", "garden", "letter", "horse", "market")


def text_of(drawn: random.Random, num_tokens: int) -> str:
    """Return random words of about `num_tokens` tokens."""
    return " ".join(drawn.choices(WORDS, k=num_tokens))


def decide(http: httpx.Client, text: str, questions: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """Return the seconds that the answer took, and its usage."""
    began = time.perf_counter()
    answer = http.post("/v1/decisions", json={"input": text, "questions": questions})
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    return seconds, answer.json()["usage"]


def computed_tokens(http: httpx.Client) -> float:
    return samples(http.get("/metrics").text)["lightwell_computed_tokens_total"]


def count(http: httpx.Client, text: str) -> int:
    """Return the tokens of an input as the chat template writes it."""
    body = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": False}
    return int(http.post("/tokenize", json=body).json()["count"])


def measure(server: Server, turns: int, question_tokens: int) -> bool:
    """Print the result of one question length, and return whether it meets the bar."""
    drawn = random.Random(question_tokens)
    ratios: list[float] = []
    bars: list[float] = []
    tokens: list[float] = []
    with httpx.Client(base_url=server.url, timeout=600) as http:
        decide(http, text_of(drawn, INPUT_TOKENS), [_question(drawn, question_tokens)])
        for turn in range(turns):
            length = INPUT_TOKENS - 16 + 32 * turn // turns
            text = text_of(drawn, length)
            one, alone = decide(http, text, [_question(drawn, question_tokens)])
            many = [_question(drawn, question_tokens) for _ in range(QUESTIONS)]
            before = computed_tokens(http)
            sixteen, _ = decide(http, text_of(drawn, length), many)
            computed = computed_tokens(http) - before
            num_one, num_input = alone["input_tokens"], count(http, text)
            num_question = num_one - num_input
            bars.append(SLACK * (num_input + QUESTIONS * num_question) / num_one)
            ratios.append(sixteen / one)
            tokens.append(computed / num_one)
    found, bar = statistics.median(ratios), statistics.median(bars)
    print(
        f"| {num_question} | {found:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {bar:.2f} | "
        f"{statistics.median(tokens):.2f} | {'yes' if found <= bar else 'no'} |",
        flush=True,
    )
    return found <= bar


def _question(drawn: random.Random, num_tokens: int) -> dict[str, Any]:
    return {"type": "predicate", "instructions": text_of(drawn, num_tokens)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--question-tokens", type=int, nargs="+", default=[16, 32, 64], help="words of each question")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--options", default="", help="more options of the server")
    options = parser.parse_args()
    with serve([*options.options.split()], environment={"LIGHTWELL_MODEL": options.model}) as server:
        print("| tokens of a question | time of 16 over one | bar | tokens computed | within |")
        print("|---|---|---|---|---|", flush=True)
        met = [measure(server, options.turns, length) for length in options.question_tokens]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
