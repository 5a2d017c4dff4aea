"""Batches over HTTP on a real server that is killed, and on a server with a full disk."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.checkpoints import folder_of
from tests.server.running import PATIENCE, RunningServer, running_server, wait_for
from tests.support.processes import worker_pid

FLAGS = ("--threads", "1", "--dtype", "float32", "--kv-cache-memory", "16MiB")


def lines(count: int, max_tokens: int = 4) -> bytes:
    body = {"max_tokens": max_tokens, "temperature": 0}
    rows = [
        {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": [2 + i % 90], **body}}
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[RunningServer]:
    model = str(folder_of("llama-gqa"))
    arguments = ("serve", model, *FLAGS, "--batch-dir", str(folder / "batches"), *flags)
    with running_server(*arguments, module="lightwell") as server:
        server.wait_ready()
        yield server


def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def begin(server: RunningServer, content: bytes) -> str:
    with client(server) as api:
        file = api.files.create(file=("input.jsonl", content), purpose="batch")
        window: Any = {"endpoint": "/v1/completions", "completion_window": "24h"}
        return api.batches.create(input_file_id=file.id, **window).id


def answered(api: openai.OpenAI, batch_id: str) -> list[str]:
    """Return the custom ids in the output and in the errors of a batch."""
    batch = api.batches.retrieve(batch_id)
    assert batch.status == "completed"
    files = [each for each in (batch.output_file_id, batch.error_file_id) if each is not None]
    return [json.loads(each)["custom_id"] for file in files for each in api.files.content(file).text.splitlines()]


@pytest.mark.nightly
def test_a_batch_whose_server_and_worker_are_killed_20_times_answers_each_line_once(tmp_path: Path) -> None:
    """Kill the API process or the worker at random moments; a new server continues where the last one ended."""
    draw, count, kills, batch_id = random.Random(time.time_ns()), 2000, 0, ""
    done: list[int] = []
    while True:
        with served(tmp_path) as server:
            batch_id = batch_id or begin(server, lines(count))
            url = f"/v1/batches/{batch_id}"
            end, kills_here = time.monotonic() + PATIENCE, 0
            while (batch := server.get(url).json())["status"] != "completed":
                done.append(batch["request_counts"]["completed"])
                is_due = kills < 20 and done[-1] >= count * kills / 21
                assert time.monotonic() < end + PATIENCE * kills_here, f"no progress: {done[-5:]}"
                if not is_due:
                    time.sleep(draw.uniform(0, 0.05))
                    continue
                kills += 1
                kills_here += 1
                worker = worker_pid(server.process.pid)
                if worker is not None and kills_here < 4 and draw.random() < 0.5:  # five lost workers end a server
                    os.kill(worker, signal.SIGKILL)
                    continue
                server.process.kill()
                server.process.wait()
                break
            else:
                with client(server) as api:
                    found = answered(api, batch_id)
                break
    assert kills == 20
    assert sorted(found) == sorted(f"line-{i}" for i in range(count))


def test_a_full_disk_loses_no_line_and_refuses_uploads(tmp_path: Path) -> None:
    """Bound the size of the files that the server may write: the kernel then refuses writes as on a full disk."""
    with served(tmp_path) as server, client(server) as api:
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, hard))  # more than the input has
        batch_id = begin(server, lines(600))
        wait_for(lambda: "batches wait, as their folder is full" in server.output, "the batch waits for room")
        with pytest.raises(openai.APIStatusError, match="disk") as refused:
            api.files.create(file=("input.jsonl", bytes(300_000)), purpose="batch")
        assert refused.value.status_code == 507
        assert api.batches.retrieve(batch_id).status == "in_progress"
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_for(lambda: api.batches.retrieve(batch_id).status == "completed", "the batch completes")
        assert answered(api, batch_id) == [f"line-{i}" for i in range(600)]
        assert len(list(api.files.list())) == 2


def test_two_servers_do_not_share_a_folder_and_an_upload_may_be_larger_than_a_body(tmp_path: Path) -> None:
    with served(tmp_path, "--max-body-bytes", "1MiB") as server:
        arguments = ("serve", str(folder_of("llama-gqa")), *FLAGS, "--batch-dir", str(tmp_path / "batches"))
        with running_server(*arguments, module="lightwell") as second:
            assert second.wait_exit() == 1
            assert "another server uses this folder" in second.output
        content = bytes(2 << 20)
        with client(server) as api:
            file = api.files.create(file=("large.jsonl", content), purpose="batch")
            assert api.files.content(file.id).content == content
        before = server.get("/v1/files").json()
        with closing(HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)) as connection:
            connection.putrequest("POST", "/v1/files")
            connection.putheader("Content-Type", "multipart/form-data; boundary=b")
            connection.putheader("Content-Length", "10000000000")
            connection.endheaders()
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (413, "file_too_large")
        assert server.get("/v1/files").json() == before


def test_a_drain_does_not_wait_for_batches_which_continue_after_the_restart(tmp_path: Path) -> None:
    with served(tmp_path, "--max-num-seqs", "1") as server:  # rows one by one, which take longest
        batch_id = begin(server, lines(600))
        wait_for(lambda: server.get(f"/v1/batches/{batch_id}").json()["request_counts"]["completed"], "it runs")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    (record,) = (tmp_path / "batches").glob("batch_*.json")
    assert json.loads(record.read_text())["status"] == "in_progress", "the drain waited for rows"
    with served(tmp_path) as server, client(server) as api:
        wait_for(lambda: api.batches.retrieve(batch_id).status == "completed", "the batch completes", 2 * PATIENCE)
        assert answered(api, batch_id) == [f"line-{i}" for i in range(600)]
