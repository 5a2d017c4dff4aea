"""Measure the accuracy and speed of int8 weights, in this process.

1. Accuracy, of the built-in model or `--model`: perplexity (e to the mean negative log-likelihood of a token) of a text
   outside its training data, read in windows of the model's context, and the largest difference of any logit from the
   float32 network's, over `--tokens` tokens.
2. Speed, of the 124M checkpoint in bfloat16: steps of the network with and without int8 alternate. The ratio is the
   median over the pairs, so that variations of the machine's speed affect both. It needs an idle machine.

    python -m benchmarks.quantized --text held_out.txt
"""

import argparse
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.checkpoint import make_checkpoint
from benchmarks.models import add_cache
from benchmarks.step_times import timed_pairs
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.server.lifecycle.worker_process import prepare_environment
from tests.support.accuracy import KINDS, Accuracy, Network, accuracies
from tests.support.processes import ROOT

CASES = {f"decode, {sequences}": (sequences, 1) for sequences in (1, 2, 8, 32)} | {"prompt of 128": (1, 128)}
"""Sequences of a step, and rows of each."""


def print_accuracies(found: dict[tuple[str, Quantization], Accuracy]) -> None:
    first = found[KINDS[0]]
    print(f"{first.num_tokens} tokens of text")
    print(f"{'weights':<24}{'perplexity':>12}{'against float32':>18}{'largest logit error':>22}")
    for (dtype, quantize), accuracy in found.items():
        name = dtype if quantize == "none" else f"{dtype}, {quantize}"
        change = 100 * (accuracy.perplexity / first.perplexity - 1)
        print(f"{name:<24}{accuracy.perplexity:>12.4f}{change:>+17.3f}%{accuracy.largest_difference:>22.4f}")


def time_steps(folder: Path, rounds: int, threads: int | None) -> None:
    plain, int8 = (Network(folder, "bfloat16", quantize, threads) for quantize in ("none", "int8"))
    print(f"\n{'bfloat16, 124M':<24}{'none, ms':>12}{'int8, ms':>12}{'times as fast':>16}")
    for case, pairs in timed_pairs(plain, int8, CASES, rounds).items():
        without, with_int8 = (1000 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{case:<24}{without:>12.2f}{with_int8:>12.2f}{ratio:>16.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file of text that the model was not trained on; none: no accuracy")
    parser.add_argument("--model", type=Path, default=ROOT / "model" / "fables", help="whose accuracy is measured")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=30, help="pairs of steps; 0: no speed")
    parser.add_argument("--threads", type=int)
    add_cache(parser)
    options = parser.parse_args()
    if options.text is not None:
        print_accuracies(accuracies(options.model, options.text.read_text(encoding="utf-8"), options.tokens))
    if options.rounds:
        prepare_environment(options.threads)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
            fresh_process.submit(time_steps, make_checkpoint(options.cache), options.rounds, options.threads).result()


if __name__ == "__main__":
    main()
