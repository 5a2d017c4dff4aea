"""A batch job's parts without Ray: rows read from files, answers equal to the routes', shards written and read back."""

import asyncio
import errno
import fcntl
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra nightly)")

import pyarrow as pa
import pyarrow.parquet as pq

from deploy.ray.batch import build_parser
from deploy.ray.batch_engine import BatchEngine
from deploy.ray.batch_input import Columns, InputError, Row, find_files, parts_of, read_part, scan
from deploy.ray.batch_manifest import ManifestError, claim, held
from deploy.ray.batch_tasks import Planner, TaskName, read_options
from deploy.ray.shards import MANIFEST, FileFormat, RowAnswer, ShardError, read_shards, read_summary, shard_path
from server.http.errors import ApiError
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site
from tests.tiny import make_variant

pytestmark = pytest.mark.nightly

FORMATS: tuple[FileFormat, ...] = ("parquet", "safetensors")


# ---- input


def read_all(files: list[Path], rows_per_shard: int, columns: Columns | None = None) -> dict[int, list[Row]]:
    columns = columns or Columns()
    parts = parts_of([(path, scan(path, rows_per_shard, columns)) for path in files], rows_per_shard)
    return {number: rows for part in parts for number, rows in read_part(part, set(part.shard_sizes), columns)}


def write_texts(path: Path, texts: list[str]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=5)
    else:
        as_line = json.dumps if path.suffix == ".jsonl" else str
        path.write_text("".join(f"{as_line({'text': text} if as_line is json.dumps else text)}\n" for text in texts))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".txt"])
def test_every_row_is_in_one_shard_and_shards_are_found_alone(tmp_path: Path, suffix: str) -> None:
    texts = [f"text {i} é" for i in range(23)]
    files = [write_texts(tmp_path / f"a{suffix}", texts[:13]), write_texts(tmp_path / f"b{suffix}", texts[13:])]
    shards = read_all(files, 3)
    rows = [row for number in sorted(shards) for row in shards[number]]
    assert [row.text for row in rows] == texts
    assert [row.id for row in rows] == list(range(23))
    assert sorted(shards) == list(range(len(shards)))
    assert max(map(len, shards.values())) == 3

    columns = Columns()
    parts = parts_of([(path, scan(path, 3, columns)) for path in files], 3)
    part = parts[-1]
    last = max(part.shard_sizes)
    assert dict(read_part(part, {last}, columns)) == {last: shards[last]}


def test_what_is_no_text_is_told_row_by_row(tmp_path: Path) -> None:
    lines = [b'{"text": "good", "key": 7}', b"no json", b'["list"]', b'{"text": 5}', b'{"other": ""}']
    lines += [b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"text": null}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))  # and no newline at the end
    (rows,) = read_all([tmp_path / "a.jsonl"], 100, Columns(key="key")).values()
    assert (rows[0].text, rows[0].key, rows[0].problem) == ("good", "7", None)
    problems = ["no JSON", "no JSON object but a list", "no text but a number", "no field 'text'", "lone surrogate"]
    for row, problem in zip(rows[1:], [*problems, "no UTF-8", "no text but null"], strict=True):
        assert row.text is None
        assert problem in str(row.problem)


def test_input_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").touch()
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    write_texts(tmp_path / "good.parquet", ["a"])
    for names, problem in (
        (["empty"], r"holds none of \.jsonl"),
        (["a.csv"], "says no format"),
        (["absent.txt"], "no such file"),
        (["good.parquet", "."], "given twice"),
    ):
        with pytest.raises(InputError, match=problem):
            find_files([str(tmp_path / name) for name in names])
    unreadable = (("broken", "text", r"broken\.parquet"), ("good", "body", "no such column; it has text"))
    for name, column, problem in unreadable:
        with pytest.raises(InputError, match=problem):
            scan(tmp_path / f"{name}.parquet", 3, Columns(text=column))


# ---- answers


@pytest.fixture(scope="module", params=["llama-gqa", "bert", "bart"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The routes in front of an engine; the batch sends its rows to the same routes."""
    folder = tmp_path_factory.mktemp(request.param)
    engine = InlineEngine(folder=make_variant(request.param, folder / "model"))
    return build_site(folder, engine, config=engine.model_config)


TASKS: dict[str, tuple[TaskName, str, dict[str, Any]]] = {
    "embedding": ("embedding", "embeddings", {"dimensions": 8}),
    "embeddings of tokens": ("embedding", "embeddings", {"pooling": "none", "layer": 1}),
    "attention": ("attention", "attention", {"layers": [0], "heads": "all", "kind": "scores"}),
    "largest weights": ("attention", "attention", {"pairs": [[1, 0], [0, 1]], "top_k": 3, "dtype": "float16"}),
    "trace": ("trace", "trace", {"points": ["hook_resid_post", "attn.hook_pattern"], "positions": [0]}),
    "changed": (
        "trace",
        "trace",
        {"points": ["hook_resid_post"], "interventions": [{"point": "attn.hook_z", "layer": 0, "op": "zero"}]},
    ),
}


def batch_of(
    site: Site, task: TaskName, options: dict[str, Any], folder: Path, file_format: FileFormat, max_bytes: int = 1 << 30
) -> BatchEngine:
    assert isinstance(site.engine, InlineEngine)
    planner = Planner(site.context, task, options)
    return BatchEngine(site.engine.engine, planner, folder, file_format, max_held=16, max_bytes=max_bytes)


def some_rows(site: Site, count: int = 12) -> list[Row]:
    """Return texts of tokens that the network has, of very different lengths; and two rows that have no answer."""
    characters = [chr(byte) for byte in range(33, min(site.context.config.vocab_size, 127))]
    texts = ["".join(random.choices(characters, k=random.choice((1, 3, 20)))) for _ in range(count)]
    rows = [Row(id=100 + i, key=f"k{i}", text=text) for i, text in enumerate(texts)]
    rows[3] = Row(id=103, problem="no text here")
    rows[5] = Row(id=105, text=characters[0] * 5000)
    return rows


def written(batch: BatchEngine, rows: list[Row], folder: Path, file_format: FileFormat) -> list[RowAnswer]:
    summary = batch.make_shard(0, rows)
    assert 0 < summary.errors < len(rows)
    assert summary == read_summary(shard_path(folder, 0, file_format))
    (folder / MANIFEST).write_text(json.dumps({"format": file_format, "num_shards": 1}))
    answers = list(read_shards(folder))
    assert summary.rows == len(rows) == len(answers)
    assert summary.errors == sum(answer.error is not None for answer in answers)
    return answers


@pytest.mark.parametrize(
    ("name", "file_format"), [("embedding", "safetensors"), *((name, FORMATS[i % 2]) for i, name in enumerate(TASKS))]
)
async def test_a_row_is_answered_as_its_route_answers(
    site: Site, tmp_path: Path, name: str, file_format: FileFormat
) -> None:
    task, route, options = TASKS[name]
    rows = some_rows(site)
    batch = batch_of(site, task, options, tmp_path, file_format)
    answers = await asyncio.to_thread(written, batch, rows, tmp_path, file_format)
    for row, answer in zip(rows, answers, strict=True):
        assert (answer.id, answer.key) == (row.id, row.key)
        if row.text is None:
            assert answer.error == row.problem
            continue
        accept = {"Accept": "application/vnd.safetensors"}
        told = await site.post(f"/v1/{route}", {**options, "input": row.text}, headers=accept)
        assert (told.status_code == 400) == (answer.error is not None)
        if answer.error is not None:
            assert answer.error == told.json()["error"]["message"]
            continue
        theirs = {name_of(full, route): value for full, value in load(told.content).items()}
        assert {name: value.shape for name, value in answer.tensors.items()} == {
            name: value.shape for name, value in theirs.items()
        }
        for tensor, value in theirs.items():
            assert answer.tensors[tensor].dtype == value.dtype
            assert answer.tensors[tensor].tobytes() == value.tobytes()
        (entry,) = (await site.post(f"/v1/{route}", {**options, "input": row.text})).json()["data"]
        assert answer.tokens == entry.get("tokens")
        assert answer.token_ids == entry.get("token_ids")
        if task == "attention":
            assert {key: entry[key] for key in answer.described} == answer.described


def name_of(full: str, route: str) -> str:
    """Return a tensor's name among the route's, which end or begin with the number of the input."""
    return full.partition("/")[2] if route == "trace" else full.removesuffix(".0")


def test_the_bytes_of_a_shard_depend_on_nothing_but_its_rows(site: Site, tmp_path: Path) -> None:
    rows = some_rows(site)
    options = {"points": ["hook_resid_post"]}
    for file_format in FORMATS:
        contents = set()
        for name, max_bytes in (("a", 1 << 30), ("b", 1)):  # all at once; one after the other
            folder = tmp_path / f"{file_format}-{name}"
            folder.mkdir()
            batch_of(site, "trace", options, folder, file_format, max_bytes).make_shard(0, rows)
            contents.add(shard_path(folder, 0, file_format).read_bytes())
            assert [path.name for path in folder.iterdir()] == [f"shard-000000.{file_format}"]
        assert len(contents) == 1


def test_no_more_is_held_than_allowed(site: Site, tmp_path: Path) -> None:
    """Check that no row is taken while the ones before it fill the room."""
    options = {"points": ["hook_resid_post"]}
    planner = Planner(site.context, "trace", options)
    rows = [Row(id=i, text="A" * 10) for i in range(40)]
    each = asyncio.run(planner.plan("A" * 10)).work.num_bytes
    taken = 0

    def counted() -> Iterator[Row]:
        nonlocal taken
        for row in rows:
            taken += 1
            yield row

    batch = batch_of(site, "trace", options, tmp_path, "parquet", max_bytes=3 * each)
    for given, _ in enumerate(batch.answers(counted())):
        assert taken - given <= 3 + 1 + 1  # 3 held, 1 planned, and 1 that this answer made room for
    assert taken == len(rows)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_shard_that_fails_leaves_nothing_behind(site: Site, tmp_path: Path, file_format: FileFormat) -> None:
    def rows() -> Iterator[Row]:
        yield from some_rows(site)
        raise OSError("the disk is gone")

    batch = batch_of(site, "embedding", {}, tmp_path, file_format)
    with pytest.raises(OSError, match="the disk is gone"):
        batch.make_shard(0, rows())
    assert not list(tmp_path.iterdir())
    assert batch.make_shard(0, some_rows(site)).errors == 2  # and the engine still runs


def test_a_shard_that_is_there_is_not_made_again(site: Site, tmp_path: Path) -> None:
    batch = batch_of(site, "embedding", {}, tmp_path, "parquet")
    made = batch.make_shard(7, some_rows(site))
    before = shard_path(tmp_path, 7, "parquet").stat()
    assert batch.make_shard(7, iter(())) == made
    after = shard_path(tmp_path, 7, "parquet").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layer": "one"}, "layer"),
        ({"points": ["x"]}, "no such field"),
        ({"input": "text"}, "makes no sense for a data set"),
        ({"timeout": 3}, "makes no sense for a data set"),
    ],
)
def test_options_that_the_route_would_refuse_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiError, match=problem):
        read_options("embedding", options)


# ---- the folder


JOB = {"task": "trace", "options": {"layers": [1]}, "input": [{"name": "a.txt", "sha256": "ab"}]}


def test_a_folder_takes_the_same_job_again_and_no_other(tmp_path: Path) -> None:
    claim(tmp_path, JOB)
    claim(tmp_path, JOB)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"task": "attention"}, r'task is "trace" there and "attention" now'),
        ({"input": [{"name": "a.txt", "sha256": "cd"}]}, r'input\[0\]\.sha256 is "ab" there and "cd" now'),
        ({"options": {"layers": [1], "heads": 0}}, r"options\.heads is given now and not there"),
    ]
    for change, problem in changes:
        with pytest.raises(ManifestError, match=problem):
            claim(tmp_path, JOB | change)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ManifestError, match=r"holds 'thesis\.tex' and no batch job"):
        claim(tmp_path / "other", JOB)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(ManifestError, match="another run is writing there"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_warned_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING), held(tmp_path):
        pass
    (told,) = caplog.messages
    assert f"the file system has no locks ({os.strerror(number)})" in told


def test_a_lock_that_fails_for_another_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), held(tmp_path):
        pass


def test_an_unfinished_job_is_read_only_when_that_is_said(site: Site, tmp_path: Path) -> None:
    batch_of(site, "embedding", {}, tmp_path, "parquet").make_shard(1, some_rows(site))
    (tmp_path / MANIFEST).write_text(json.dumps({"format": "parquet", "num_shards": 2}))
    with pytest.raises(ShardError, match="1 of 2 shards"):
        list(read_shards(tmp_path))
    answers = list(read_shards(tmp_path, partial=True))
    assert len(answers) == 12
    assert answers[0].tensors["embedding"].dtype == np.float32


# ---- the command line


def test_kernels_are_settings_of_a_job(tmp_path: Path) -> None:
    given = ["--input", "in", "--output", str(tmp_path), "--task", "embedding"]
    found = build_parser().parse_args([*given, "--kernels", "torch", "--kernel-arithmetic", "float32"])
    assert (found.kernels, found.kernel_arithmetic) == ("torch", "float32")
