"""A batch job on two Ray nodes: killed and run again it writes the same files as an undisturbed job, with a server's
numbers.

Ray runs in processes of its own, as it does for users; and its warnings are not this project's.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.numpy import load

pytest.importorskip("ray", reason="Ray is not installed (the extra nightly)")

import pyarrow as pa
import pyarrow.parquet as pq

from deploy.ray.batch_engine import BatchEngine, Job, portable_fingerprint
from deploy.ray.batch_input import Columns, parts_of, read_part, scan
from deploy.ray.shards import read_shards, read_summary
from server.config.settings import Settings
from server.lifecycle.app import load_model_files
from tests.server.running import wait_for
from tests.support.processes import serve

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
}
"""Environment of the tests. The last but one keeps Ray on the loopback interface, also on Linux. The last sets the
niceness of workers (Ray's default is 15), so that other tests that run at the same time do not slow engines down.
"""
PATIENCE = 600.0
NUM_ROWS = 160
ROWS_PER_SHARD = 8
NUM_SHARDS = NUM_ROWS // ROWS_PER_SHARD
BAD_ROWS = (5, 77, 150)
OPTIONS = {"points": ["hook_resid_post", "attn.hook_pattern"], "layers": [1, 4]}
SOME_ROWS_FAILED = 3


@pytest.fixture(scope="module")
def cluster(only_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("cluster") / "log"
    command = [sys.executable, "-m", "tests.deploy.ray_nodes"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
        )
    try:
        found = wait_until(lambda: re.search(r"^nodes: (\S+)$", log.read_text(), re.MULTILINE), "the cluster")
        yield found[1]
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE)
    finally:
        with suppress(ProcessLookupError):  # nodes that outlived it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = (ROOT / "tests" / "e2e" / "book_of_dragons.txt").read_text().split()
    path = tmp_path_factory.mktemp("input") / "texts.jsonl"
    with path.open("w") as file:
        for number in range(NUM_ROWS):
            start, length = random.randrange(len(words) - 60), random.choice((2, 10, 60))
            text = " ".join(words[start : start + length])
            file.write(json.dumps({"text": "" if number in BAD_ROWS else text, "key": f"row-{number}"}) + "\n")
    return path


@dataclass
class Batch:
    """The command, and the folder it writes to."""

    address: str
    texts: Path
    folder: Path
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def start(self, *more: str, workers: int = 1) -> "subprocess.Popen[str]":
        arguments = ["--input", self.texts, "--output", self.folder, "--address", self.address, "--task", "trace"]
        arguments += ["--options", json.dumps(OPTIONS), "--rows-per-shard", ROWS_PER_SHARD, "--key-column", "key"]
        arguments += ["--workers", workers, "--cpus-per-worker", 0.5, "--threads", 1, *more]
        command = [sys.executable, "-m", "deploy.ray.batch", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("shard-*"))


wait_until = partial(wait_for, patience=PATIENCE, pause=0.005)


def actors(folder: Path) -> list[int]:
    """Return the process ids of engines that have a file of this folder open, which they write."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            files = [os.readlink(file) for file in (process / "fd").iterdir()]
        except OSError:
            continue
        if process.name.isdigit() and any(str(folder) in file and ".tmp" in file for file in files):
            found.append(int(process.name))
    return found


def test_a_job_that_is_killed_goes_on_where_it_was(cluster: str, texts: Path, tmp_path: Path) -> None:
    with Batch(cluster, texts, tmp_path / "killed") as killed:
        check_that_it_goes_on(killed)
    check_against_an_undisturbed_engine(killed, texts, tmp_path / "calm")
    check_against_a_server(killed.folder, texts)


def check_that_it_goes_on(killed: Batch) -> None:
    first = killed.start()
    wait_until(lambda: len(killed.shards) >= 2, "the first shards")
    first.kill()
    first.communicate()
    num_done = len(killed.shards)
    assert num_done < NUM_SHARDS
    before = {path.name: path.stat().st_ino for path in killed.shards}

    again = killed.start(workers=2)
    wait_until(lambda: len(killed.shards) > num_done + 2, "more shards")
    os.kill(wait_until(lambda: actors(killed.folder), "an engine that writes")[0], signal.SIGKILL)
    assert len(killed.shards) < NUM_SHARDS
    out, log = again.communicate(timeout=PATIENCE)
    assert again.returncode == SOME_ROWS_FAILED, log
    told = out.splitlines()[-1]  # the lines before it are Ray's messages about the killed engine
    assert told.startswith(f"{NUM_ROWS} rows, ")
    assert f", {len(BAD_ROWS)} errors: " in told
    begun = re.search(rf"(\d+)/{NUM_ROWS}\b", log)
    assert begun, "no progress bar"
    # An engine of the killed job may have ended a shard after it.
    assert int(begun[1]) >= num_done * ROWS_PER_SHARD, "the progress bar begins with what is done"

    assert len(killed.shards) == NUM_SHARDS
    assert before.items() <= {path.name: path.stat().st_ino for path in killed.shards}.items(), "made twice"
    assert not list(killed.folder.glob(".shard*")), "left behind"

    other = killed.start("--format", "safetensors")
    assert 'format is "parquet" there and "safetensors" now' in other.communicate(timeout=PATIENCE)[1]
    assert other.returncode == 2


def test_the_shards_of_one_parquet_row_group_go_to_all_workers(cluster: str, tmp_path: Path) -> None:
    """Check with more shards than one worker makes before the other is there; the job is stopped when both have been
    seen.
    """
    num_rows = 40_000
    texts = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": ["once upon a time"] * num_rows, "key": ["a"] * num_rows}), texts)
    assert pq.read_metadata(texts).num_row_groups == 1
    with Batch(cluster, texts, tmp_path / "out") as batch:
        job = batch.start(workers=2)
        seen: set[int] = set()

        def both() -> bool:
            seen.update(actors(batch.folder))
            assert job.poll() is None, f"only {seen} wrote"
            return len(seen) == 2

        wait_until(lambda: batch.shards or job.poll() is not None, "the first shard")
        wait_until(both, "a second engine that writes")
        enough = len(batch.shards) + 5
        wait_until(lambda: len(batch.shards) > enough, "more shards")
        job.kill()
        log = job.communicate()[1]
    assert re.search(rf"\b[1-9]\d*/{num_rows}\b", log), "the progress bar stood still"


def check_against_an_undisturbed_engine(killed: Batch, texts: Path, calm: Path) -> None:
    """Check that the shards have the bytes that one engine writes in this process, without Ray."""
    calm.mkdir()
    # As many threads as exist now: other tests run in this process too.
    settings = Settings.from_sources({"threads": str(torch.get_num_threads())}, os.environ)
    model = portable_fingerprint(load_model_files(settings).fingerprint)
    job = Job(settings=settings, task="trace", options=OPTIONS, file_format="parquet", folder=str(calm), model=model)
    engine, columns = BatchEngine.load(job), Columns(key="key")
    for part in parts_of([(texts, scan(texts, ROWS_PER_SHARD, columns))], ROWS_PER_SHARD):
        for number, rows in read_part(part, set(part.shard_sizes), columns):
            engine.make_shard(number, rows)
    for mine, theirs in zip(killed.shards, sorted(calm.glob("shard-*")), strict=True):
        assert mine.name == theirs.name
        assert mine.read_bytes() == theirs.read_bytes()


def check_against_a_server(folder: Path, texts: Path) -> None:
    """Check that every row is there once, and that some of them equal the answer of POST /v1/trace bit for bit."""
    rows = list(read_shards(folder))
    assert [row.id for row in rows] == list(range(NUM_ROWS))
    assert [row.key for row in rows] == [f"row-{number}" for number in range(NUM_ROWS)]
    assert [row.id for row in rows if row.error is not None] == list(BAD_ROWS)
    assert sum(read_summary(path).tokens for path in folder.glob("shard-*")) == sum(row.num_tokens for row in rows)
    given = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    with serve(["--threads", "1"]) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for row in (rows[0], rows[123], rows[-1]):
            body = {**OPTIONS, "input": given[row.id]}
            answer = client.post("/v1/trace", json=body, headers={"Accept": "application/vnd.safetensors"})
            theirs = load(answer.content)
            assert {f"0/{name}" for name in row.tensors} == theirs.keys()
            for name, value in row.tensors.items():
                assert (value.dtype, value.shape) == (theirs[f"0/{name}"].dtype, theirs[f"0/{name}"].shape)
                assert value.tobytes() == theirs[f"0/{name}"].tobytes()
            assert answer.headers["content-type"] == "application/vnd.safetensors"


def test_a_command_line_that_makes_no_sense_is_told_before_anything_starts(tmp_path: Path) -> None:
    texts = tmp_path / "a.txt"
    texts.write_text("a\n")
    command = [sys.executable, "-m", "deploy.ray.batch", "--input", str(texts), "--output", str(tmp_path / "out")]
    asked = [*command, "--task", "attention", "--options", '{"layers": [99]}']
    ended = subprocess.run(asked, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "error: layers: there is no layer 99; accepted are 0 to 5" in ended.stderr
    assert not (tmp_path / "out").exists()
