"""`lightwell batch`: each line of the input has exactly one answer, however often the job was killed."""

import contextlib
import fcntl
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.server.cli import main
from tests.support.shared import shared_server

PATIENCE = 120.0


def line(number: int, body: dict[str, Any], url: str = "/v1/completions", **fields: Any) -> str:
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body, **fields}) + "\n"


def answers_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_a_file_has_the_answers_of_a_server_and_bad_lines_have_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy = {"temperature": 0, "max_tokens": 4}
    chat = {"messages": [{"role": "user", "content": "Hello"}], **greedy}
    bodies = [
        ("/v1/completions", {"prompt": "A fox", **greedy}),
        ("/v1/chat/completions", chat),
        ("/v1/embeddings", {"input": "A fox"}),
        ("/v1/responses", {"input": "Hello", "temperature": 0, "max_output_tokens": 4}),
    ]
    bad = [
        ("not json\n", "expected"),
        ("[1]\n", "not a JSON object"),
        (line(5, {}, url="/v1/models"), "url: '/v1/models'; accepted: /v1/chat/completions"),
        (line(6, {**chat, "stream": True}, url="/v1/chat/completions"), "body.stream"),
        (line(7, {}, method="GET"), "method: 'GET'"),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(number, body, url) for number, (url, body) in enumerate(bodies)]
    refused = line(8, {"prompt": "A fox", "temperature": -1})
    source.write_text("".join([*lines, "\n", *(text for text, _ in bad), refused]))
    assert main(["batch", str(source), str(target), "--model", "fables", "--threads", "1"]) == 0
    assert "10 lines are answered, 6 of this run's with an error" in capsys.readouterr().out
    found = answers_in(target)
    assert [each["custom_id"] for each in found] == [
        *(f"line-{i}" for i in range(4)),
        None,
        None,
        *(f"line-{i}" for i in (5, 6, 7, 8)),
    ]
    server = shared_server("fables", "--threads", "1")
    for answer, (url, body) in zip(found, bodies, strict=False):
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)
        theirs = httpx.post(f"{server.url}{url}", json=body, timeout=PATIENCE).json()
        assert answer["response"]["body"].keys() == theirs.keys()
        for name in ("choices", "data"):
            assert answer["response"]["body"].get(name) == theirs.get(name)
    for answer, (_, message) in zip(found[4:], bad, strict=False):
        assert answer["response"] is None
        assert message in answer["error"]["message"]
    assert found[-1]["response"]["status_code"] == 400
    assert "temperature" in found[-1]["response"]["body"]["error"]["message"]


def test_a_job_that_is_killed_continues_and_answers_each_line_once(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    count = 60
    source.write_text(
        "".join(line(i, {"prompt": f"{i} foxes", "max_tokens": 24, "temperature": 0}) for i in range(count))
    )
    arguments = ["run-batch", "-i", str(source), "-o", str(target), "--model", "fables", "--max-num-seqs", "1"]
    for number in (signal.SIGKILL, signal.SIGINT):
        before = target.stat().st_size if target.exists() else 0
        command = [sys.executable, "-m", "lightwell", *arguments]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while (not target.exists() or target.stat().st_size == before) and job.poll() is None:
            time.sleep(0.002)
        job.send_signal(number)
        job.wait(PATIENCE)
    if target.read_bytes().count(b"\n") < count:  # a slow machine may signal a job that has ended
        with target.open("ab") as output:  # as where a write was cut off
            output.write(b'{"id":"batch_req_1","custom_id":"line-')
    assert main(arguments) == 0
    assert [each["custom_id"] for each in answers_in(target)] == [f"line-{i}" for i in range(count)]
    done = target.read_bytes()
    assert main(arguments) == 0
    assert target.read_bytes() == done


@pytest.mark.nightly
def test_2000_lines_have_one_answer_each_after_20_kills_at_random_moments(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    count, num_kills = 2000, 20
    source.write_text(
        "".join(line(i, {"prompt": f"{i} foxes", "max_tokens": 4, "temperature": 0}) for i in range(count))
    )
    command = [sys.executable, "-m", "lightwell", "batch", str(source), str(target), "--model", "fables"]

    def size() -> int:
        return target.stat().st_size if target.exists() else 0

    done = []
    for kill in range(num_kills):
        begin, most = size(), random.randint(1, count // num_kills) * 400
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        give_up = time.monotonic() + (PATIENCE if kill % 4 else random.uniform(0, 3))  # some die while they load
        while size() < begin + most and time.monotonic() < give_up:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(0.001)
        job.kill()
        assert job.wait(PATIENCE) == -signal.SIGKILL
        done.append(size())
    assert len({*done}) > num_kills // 2
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    answers = answers_in(target)
    assert [each["custom_id"] for each in answers] == [f"line-{i}" for i in range(count)]
    assert {each["response"]["status_code"] for each in answers} == {200}


def test_files_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, other, target = tmp_path / "in.jsonl", tmp_path / "other.jsonl", tmp_path / "out.jsonl"
    source.write_text(line(1, {"prompt": "A fox", "max_tokens": 1}))
    other.write_text(line(2, {"prompt": "A fox", "max_tokens": 1}))
    notes, held = tmp_path / "notes.txt", tmp_path / "held.jsonl"
    notes.write_text("my notes")
    options = ["--model", "fables", "--threads", "1"]
    assert main(["batch", str(source), str(target), *options]) == 0
    for files, message in (
        ((other, target), "line 1 is not the answer"),
        ((source, notes), "line 1 is not the answer"),
        ((source, source), "is the input"),
        ((tmp_path / "no.jsonl", target), "no.jsonl: a regular file is accepted"),
        ((source, tmp_path), "Is a directory"),
        ((source, held), "another job is writing to this file"),
    ):
        capsys.readouterr()
        with held.open("w") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            assert main(["batch", *map(str, files), *options]) == 1
        assert message in capsys.readouterr().err
    assert (notes.read_text(), source.read_text()) == ("my notes", line(1, {"prompt": "A fox", "max_tokens": 1}))


def test_lines_that_find_no_room_wait_and_nested_ones_are_errors(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    nested = json.loads("[" * 300 + "]" * 300)
    lines = [line(i, {"prompt": "A fox", "max_tokens": 100, "ignore_eos": True}) for i in range(80)]
    source.write_text("".join([line(-1, {"prompt": nested}), *lines]))
    assert main(["batch", str(source), str(target), "--model", "fables", "--kv-cache-memory", "4MiB"]) == 0
    first, *others = answers_in(target)
    assert first["error"] is not None or first["response"]["status_code"] == 400
    assert {each["response"]["status_code"] for each in others} == {200}
    assert len(others) == len(lines)
