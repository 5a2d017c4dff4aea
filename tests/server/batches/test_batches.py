"""/v1/files and /v1/batches with the `openai` package in front of the application."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from lightwell.server.engine.messages.request import BACKGROUND
from lightwell.server.generation.model_list import ModelList, ModelSlot
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.errors import Unavailable, WorkerLost
from lightwell.server.observability.access_log import RequestRecord, current_record
from tests.server.batches.site import ENDPOINT, Held, answers, begin, client, ids_of, line, lines, served, until
from tests.server.fake_client import FakeEngine
from tests.server.serving import site

# ---- the life of a batch


async def test_a_client_uploads_creates_polls_and_downloads(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        api = client(at)
        content = lines(3) + line(3, temperature=-1) + b"\n" + line(4)
        file = await api.files.create(
            file=("input.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert (file.bytes, file.filename, file.purpose, file.status) == (
            len(content),
            "input.jsonl",
            "batch",
            "processed",
        )
        assert file.expires_at == file.created_at + 3600
        assert (await api.files.content(file.id)).content == content
        batch = await api.batches.create(
            input_file_id=file.id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={"purpose": "test"},
            output_expires_after={"anchor": "created_at", "seconds": 7200},
        )
        assert (batch.status, batch.input_file_id, batch.metadata) == ("validating", file.id, {"purpose": "test"})
        assert batch.expires_at == batch.created_at + 24 * 3600
        batch = await until(api, batch.id, "completed")
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (5, 4, 1)
        times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        assert sorted(times) == list(times)
        output, errors = await answers(api, batch.output_file_id), await answers(api, batch.error_file_id)
        assert ids_of(output) == ["line-0", "line-1", "line-2", "line-4"]
        assert {each["response"]["body"]["choices"][0]["text"] for each in output} == {"hihi"}
        assert ids_of(errors) == ["line-3"]
        assert errors[0]["response"]["status_code"] == 400
        stored = await api.files.retrieve(batch.output_file_id)
        assert (stored.purpose, stored.expires_at) == ("batch_output", stored.created_at + 7200)
        assert (await api.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await api.files.retrieve(file.id)


async def test_rows_have_the_lowest_priority_and_no_deadline(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine) as at:
        api = client(at)
        await until(api, (await begin(api, line(1, priority=0))).id, "completed")
        assert [(each.priority, each.deadline) for each in engine.submitted] == [(BACKGROUND, None)]


async def test_lists_have_pages_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        api = client(at)
        files = [(await api.files.create(file=(f"{i}.jsonl", line(i)), purpose="batch")).id for i in range(5)]
        newest = [each.id async for each in api.files.list(limit=2)]
        assert newest == files[::-1]
        assert [each.id async for each in api.files.list(limit=3, order="asc")] == files
        assert [each.id async for each in api.files.list(purpose="vision")] == []
        batches = [
            (await api.batches.create(input_file_id=each, endpoint=ENDPOINT, completion_window="24h")).id
            for each in files
        ]
        assert [each.id async for each in api.batches.list(limit=2)] == batches[::-1]
        page = await api.batches.list(limit=2, after=batches[2])
        assert ([each.id for each in page.data], page.has_more) == (batches[1::-1], False)
        with pytest.raises(openai.BadRequestError, match="after"):
            await api.batches.list(after="batch_1")


async def test_a_cancelled_batch_keeps_its_answers_and_has_an_error_for_each_other_line(tmp_path: Path) -> None:
    engine = Held()
    async with served(tmp_path, engine, max_num_seqs=1) as at:  # four rows at a time
        api = client(at)
        batch = await begin(api, lines(2) + b"".join(line(i, prompt="held") for i in range(2, 8)))
        await until(api, batch.id, "in_progress", num_done=2)
        assert (await api.batches.cancel(batch.id)).status == "cancelling"
        batch = await until(api, batch.id, "cancelled")
        assert batch.cancelled_at >= batch.cancelling_at
        output, errors = await answers(api, batch.output_file_id), await answers(api, batch.error_file_id)
        assert (ids_of(output), ids_of(errors)) == (["line-0", "line-1"], [f"line-{i}" for i in range(2, 8)])
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert len(engine.submitted) <= 6
        assert all(each.handle.is_closed for each in engine.submitted), "a row of a cancelled batch runs"
        assert (await api.batches.cancel(batch.id)).status == "cancelled"
        failed = await until(api, (await begin(api, b"no json\n")).id, "failed")
        with pytest.raises(openai.ConflictError, match="failed"):
            await api.batches.cancel(failed.id)


async def test_an_expired_batch_has_an_error_for_each_line_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightwell.server.batches.runner.WINDOW", 0)
    async with served(tmp_path) as at:
        api = client(at)
        batch = await until(api, (await begin(api, lines(3))).id, "expired")
        assert batch.output_file_id is None
        errors = await answers(api, batch.error_file_id)
        assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [
            (f"line-{i}", "batch_expired") for i in range(3)
        ]


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (line(0) + b"{\n", "invalid_json_line", 2),
        (line(0) + line(1) + line(0), "duplicate_custom_id", 3),
        (b'{"method": "POST", "url": "/v1/completions", "body": {}}\n', "missing_required_parameter", 1),
        (line(0, url="/v1/embeddings"), "invalid_url", 1),
        (line(0, url="/v1/models"), "invalid_request", 1),
        (line(0, stream=True), "invalid_request", 1),
        (lines(4), "too_many_lines", None),
    ],
)
async def test_an_input_that_cannot_be_run_fails_and_names_the_line(
    tmp_path: Path, content: bytes, code: str, number: int | None
) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine, max_batch_lines=3) as at:
        api = client(at)
        batch = await until(api, (await begin(api, content)).id, "failed")
        assert [(each.code, each.line) for each in batch.errors.data] == [(code, number)]
        assert (batch.output_file_id, batch.error_file_id, engine.submitted) == (None, None, [])


async def test_a_batch_that_was_interrupted_at_any_line_continues_and_answers_each_line_once(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        api = client(at)
        batch = await begin(api, lines(9))
        await until(api, batch.id, "completed")
    folder = tmp_path / "batches"
    record = folder / f"{batch.id}.json"
    done = json.loads(record.read_text())
    written = (folder / f"{done['output_file_id']}.data").read_bytes().splitlines(keepends=True)
    for num_lines, rest in ((0, b""), (4, b'{"id":"batch_req_1","cus'), (9, b""), (5, b"\0\0\0"), (5, written[2])):
        for status in ("in_progress", "finalizing", "validating"):
            begun = done | {"status": status, "output_file_id": None, "num_done": 9}
            record.write_text(json.dumps(begun))
            (folder / f"{batch.id}.data").write_bytes(b"".join(written[:num_lines]) + rest)
            engine = FakeEngine()
            async with served(tmp_path, engine) as at:
                api = client(at)
                is_short = status == "finalizing" and num_lines < 9  # as after a loss of power
                again = await until(api, batch.id, "expired" if is_short else "completed")
                found = await answers(api, again.output_file_id) + await answers(api, again.error_file_id)
                assert ids_of(found) == [f"line-{i}" for i in range(9)]
                assert len(engine.submitted) == (0 if status == "finalizing" else 9 - num_lines)


async def test_rows_wait_for_a_worker_that_was_lost_and_for_the_quota_of_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightwell.server.batches.runner._LONGEST_PAUSE", 0.01)
    engine = FakeEngine(refuse=Unavailable("No worker is ready.", code="not_ready", retry_after=1))
    async with served(tmp_path, engine) as at:
        api = client(at)
        batch = await begin(api, lines(2))
        await until(api, batch.id, "in_progress")
        engine.refuse, engine.fail_after = None, 1
        engine.failure = WorkerLost("The worker ended.", code="worker_lost", retry_after=1)
        async with asyncio.timeout(60):
            while not engine.submitted:
                await asyncio.sleep(0.001)
        engine.fail_after = None
        batch = await until(api, batch.id, "completed")
        assert batch.request_counts.completed == 2
        engine.fail_after = 0  # a row that ends every worker
        batch = await until(api, (await begin(api, lines(1))).id, "completed")
        (error,) = await answers(api, batch.error_file_id)
        assert error["response"]["body"]["error"]["code"] == "worker_lost"


class Loader:
    """Loads models at once."""

    is_draining = False

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def read(self, slot: ModelSlot) -> ServedModel:
        return self.model

    async def start(self, slot: ModelSlot, files: ModelFiles) -> ServedModel:
        return replace(self.model, id=slot.id)

    async def stop(self, slot: ModelSlot) -> None:
        pass


async def test_rows_do_not_unload_a_model_that_other_requests_have_just_used(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        slots = [ModelSlot(at.context.settings, [name], at.model.metrics) for name in ("a", "b")]
        models = ModelList(slots, Loader(at.model), most_loaded=1)
        await models.find("a")
        current_record.set(RequestRecord("row", is_background=True))
        with pytest.raises(Unavailable, match="waits until there is a place"):
            await models.find("b")
        assert slots[0].state == "loaded"
        slots[0].used_at -= 120  # seconds without use
        assert (await models.find("b"))[0].id == "b"
        assert slots[0].state == "unloaded"
