"""Measure a batch job on a local Ray: rows and tokens per second, and the peak memory of each process.

    python -m benchmarks.ray_data [--rows 4000] [--workers 1 2]

Each row is traced, so that the output is much larger than the object store; memory must not grow with it. Prints a
Markdown table.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.processes import ROOT, descendants, proportional_bytes

STORE_BYTES = 80_000_000
"""Bytes of Ray's object store: about the least that it takes."""
_SAMPLE_INTERVAL = 0.5
_WORDS_PER_ROW = 100
_MIB = 1 << 20
_OPTIONS = {"points": ["hook_resid_post"]}
_HEADS = (
    "workers", "rows", "tokens/s after the first shard", "output MiB", "object store, limit MiB", "command, peak MiB",
    "worker, peak MiB", "all, peak MiB",
)  # fmt: skip


@dataclass
class Peaks:
    """Peaks of proportional memory in bytes: shared pages count once."""

    command: int = 0
    worker: int = 0
    """Bytes of the largest worker."""
    everything: int = 0

    def sample(self, pid: int) -> None:
        sizes = {each: proportional_bytes(each) for each in descendants(pid)}
        self.command = max(self.command, sizes.get(pid, 0))
        self.worker = max([self.worker, *(size for each, size in sizes.items() if _is_worker(each))])
        self.everything = max(self.everything, sum(sizes.values()))


def _is_worker(pid: int) -> bool:
    try:
        return b"MapWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; return 1 when a job failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_data", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=4000, help="of the data set (4000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="one run for each number (1 2)")
    parser.add_argument("--format", choices=("parquet", "safetensors"), default="parquet")
    arguments = parser.parse_args(argv)
    print(f"| {' | '.join(_HEADS)} |\n{'|---' * len(_HEADS)}|", flush=True)
    with TemporaryDirectory() as name:
        texts = Path(name) / "texts.jsonl"
        _write_texts(texts, arguments.rows)
        for workers in arguments.workers:
            output = Path(name) / f"out-{workers}"
            line = _measure(texts, output, workers, arguments.format)
            if line is None:
                return 1
            print(line, flush=True)
            shutil.rmtree(output)
    return 0


def _write_texts(path: Path, num_rows: int) -> None:
    words = (ROOT / "tests" / "e2e" / "book_of_dragons.txt").read_text().split()
    draw = random.Random(1)
    with path.open("w") as file:
        for _ in range(num_rows):
            start = draw.randrange(len(words) - _WORDS_PER_ROW)
            file.write(json.dumps({"text": " ".join(words[start : start + _WORDS_PER_ROW])}) + "\n")


def _measure(texts: Path, output: Path, workers: int, file_format: str) -> str | None:
    """Run one job and return a line of the table, or None if it failed."""
    command = [sys.executable, "-m", "deploy.ray.batch", "--input", str(texts), "--output", str(output)]
    command += ["--task", "trace", "--options", json.dumps(_OPTIONS), "--format", file_format]
    command += ["--rows-per-shard", "50", "--workers", str(workers), "--object-store-memory", str(STORE_BYTES)]
    command += ["--max-capture-bytes", "64MiB", "--cpus-per-worker", str(min(1.0, (os.cpu_count() or 1) / workers))]
    peaks = Peaks()
    with subprocess.Popen([*command, "--no-progress"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peaks.sample(process.pid)
            time.sleep(_SAMPLE_INTERVAL)
        assert process.stdout is not None
        told = process.stdout.read()
    if process.returncode:
        print(told, file=sys.stderr)
        return None
    rows, tokens = (int(part.split()[-2]) for part in told.strip().splitlines()[-1].split(",")[:2])
    speed = tokens_per_second(tokens, [path.stat().st_mtime for path in output.glob("shard-*")])
    size = sum(path.stat().st_size for path in output.iterdir())
    sizes = [size, STORE_BYTES, peaks.command, peaks.worker, peaks.everything]
    told_sizes = " | ".join(f"{each / _MIB:.0f}" for each in sizes)
    return f"| {workers} | {rows} | {speed or 'too short to tell'} | {told_sizes} |"


def tokens_per_second(tokens: int, written: Sequence[float]) -> int | None:
    """Return the tokens per second of all shards but the first, by the times of their files, or None if unknown.

    The start of Ray and the engines, and their end after the last shard, are not counted.
    """
    seconds = max(written, default=0.0) - min(written, default=0.0)
    return round(tokens * (1 - 1 / len(written)) / seconds) if seconds > 0 else None


if __name__ == "__main__":
    sys.exit(main())
