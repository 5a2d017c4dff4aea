"""/v1/files and /v1/batches with the `openai` package in front of the application, and with hostile requests."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from lightwell.server.batches.folder import MAX_FILES, BatchFolder
from lightwell.server.batches.records import StoredFile
from lightwell.server.batches.runner import MAX_BATCHES
from lightwell.server.config.auth.keys import hash_of
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.request import BACKGROUND, EngineRequest
from lightwell.server.http.errors import Unavailable, WorkerLost
from tests.server.fake_client import FakeEngine, FakeHandle
from tests.server.serving import Site, error_of, site

ENDPOINT: Any = "/v1/completions"
KEYS = ("key", "other")


def line(number: int, *, url: str = ENDPOINT, **fields: Any) -> bytes:
    body = {"prompt": "ab", "max_tokens": 4} | fields
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body}).encode() + b"\n"


def lines(count: int) -> bytes:
    return b"".join(map(line, range(count)))


@asynccontextmanager
async def served(folder: Path, engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[Site]:
    """Run an application over the folder `batches`, which may hold the batches of an earlier one."""
    settings = {"batch_dir": str(folder / "batches"), "api_key": KEYS} | settings
    async with site(folder, engine, **settings) as at:
        yield at


def client(at: Site, key: str = "key") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://lightwell/v1", api_key=key, http_client=at.http, max_retries=0)


async def begin(api: openai.AsyncOpenAI, content: bytes, **fields: Any) -> Any:
    file = await api.files.create(file=("input.jsonl", content), purpose="batch")
    return await api.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", **fields)


async def until(api: openai.AsyncOpenAI, batch_id: str, *states: str, num_done: int = 0) -> Any:
    """Return the batch once it is in one of these states and has this number of answers."""
    async with asyncio.timeout(60):
        while True:
            batch = await api.batches.retrieve(batch_id)
            if batch.status in states and batch.request_counts.completed >= num_done:
                return batch
            await asyncio.sleep(0.005)


async def answers(api: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(each) for each in (await api.files.content(file_id)).text.splitlines()]


def ids_of(found: Sequence[dict[str, Any]]) -> list[str]:
    return [each["custom_id"] for each in found]


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


class Held(FakeEngine):
    """Answers only prompts that begin with "a"."""

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> FakeHandle:
        self.gate = None if request.prompt_token_ids[0] == ord("a") else asyncio.Event()
        return await super().submit(request, request_context)


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


# ---- owners, bounds and hostile requests


async def test_another_key_and_guessed_ids_find_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        mine, theirs = client(at), client(at, "other")
        batch = await until(mine, (await begin(mine, lines(2))).id, "completed")
        secret = tmp_path / "secret"
        secret.write_text("never seen")
        file_ids = [batch.input_file_id, batch.output_file_id, "file-" + "0" * 32, "../../secret", str(secret), "lock"]
        for file_id in file_ids:
            path = file_id.replace("/", "%2F")
            for method, suffix in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
                answer = await at.http.request(
                    method, f"/v1/files/{path}{suffix}", headers={"Authorization": "Bearer other"}
                )
                assert answer.status_code == 404
                assert "never seen" not in answer.text
            with pytest.raises(openai.NotFoundError):
                await theirs.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
        for batch_id in (batch.id, "batch_" + "0" * 32, "../lock"):
            for method, suffix in (("GET", ""), ("POST", "/cancel")):
                url = f"/v1/batches/{batch_id.replace('/', '%2F')}{suffix}"
                answer = await at.http.request(method, url, headers={"Authorization": "Bearer other"})
                assert answer.status_code == 404
        assert [each async for each in theirs.files.list()] == []
        assert [each async for each in theirs.batches.list()] == []
        known, unknown = [
            (await at.http.get(f"/v1/files/{each}", headers={"Authorization": "Bearer other"})).text.replace(each, "ID")
            for each in (batch.input_file_id, "file-" + "0" * 32)
        ]
        assert known == unknown
        for path in ("/v1/files", f"/v1/files/{batch.input_file_id}/content", "/v1/batches"):
            assert (await at.http.get(path)).status_code == 401


async def test_without_a_folder_there_are_no_routes(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/v1/files/file-1/content")):
            answer = await at.http.request(method, path)
            assert (answer.status_code, error_of(answer)["code"]) == (404, "route_not_found")


async def test_links_and_foreign_files_in_the_folder_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    ids = [f"file-{letter * 32}" for letter in "abcd"]
    fields = {"owner": "", "order": time.time_ns(), "bytes": 6, "expires_at": 2**40, "filename": "x"}
    for each in ids:
        record = StoredFile(id=each, purpose="batch", **fields)  # type: ignore[arg-type]
        (folder / f"{each}.json").write_bytes(msgspec.json.encode(record))
        (folder / f"{each}.data").write_text("mine")
    (folder / f"{ids[0]}.data").unlink()
    (folder / f"{ids[0]}.data").symlink_to(secret)
    (folder / f"{ids[1]}.json").unlink()
    (folder / f"{ids[1]}.json").symlink_to(folder / f"{ids[2]}.json")
    os.mkfifo(folder / "pipe")
    (folder / f"{ids[3]}.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / f"file-{'e' * 32}.data").write_text("the rest of an interrupted upload")
    async with served(tmp_path, api_key=()) as at:
        api = client(at)
        assert [each.id async for each in api.files.list()] == [ids[2]]
        (folder / f"{ids[2]}.data").unlink()
        (folder / f"{ids[2]}.data").symlink_to(secret)
        with pytest.raises(openai.NotFoundError):
            await api.files.content(ids[2])
        batch = await api.batches.create(input_file_id=ids[2], endpoint=ENDPOINT, completion_window="24h")
        batch = await until(api, batch.id, "failed")
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert batch.errors.data[0].code == "file_unreadable"
    assert (secret.read_text(), (folder / "notes.txt").read_text()) == ("secret", "mine")
    assert not (folder / f"file-{'e' * 32}.data").exists()


async def test_a_declared_length_of_10_gb_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    was_read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield b"x"

    async with served(tmp_path) as at:
        headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": "10000000000"}
        answer = await at.http.post("/v1/files", content=body(), headers=headers | {"Authorization": "Bearer key"})
        assert (answer.status_code, error_of(answer)["code"]) == (413, "file_too_large")
        assert list((tmp_path / "batches").glob("file-*")) == []
        assert (await at.http.post("/v1/files", content=body(), headers=headers)).status_code == 401
    assert not was_read


async def test_files_over_the_bounds_of_a_key_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, max_batch_file_bytes=3 << 20, max_batch_bytes=4 << 20) as at:
        api, other = client(at), client(at, "other")

        async def chunks(size: int) -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(size >> 16):
                yield bytes(1 << 16)
            yield b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'

        async def upload(size: int) -> httpx.Response:
            headers = {"Content-Type": "multipart/form-data; boundary=b", "Authorization": "Bearer key"}
            return await at.http.post("/v1/files", content=chunks(size), headers=headers)

        answer = await upload(4 << 20)
        assert (answer.status_code, error_of(answer)["code"]) == (413, "file_too_large")
        assert (await upload(3 << 20)).status_code == 200
        answer = await upload(2 << 20)
        assert (answer.status_code, error_of(answer)["code"]) == (413, "key_files_too_large")
        assert (await other.files.create(file=bytes(3 << 20), purpose="batch")).bytes == 3 << 20
        assert len([each async for each in api.files.list()]) == 1
        assert len(list((tmp_path / "batches").glob("*.data"))) == 2
        record = next(iter(at.context.batches.folder.files.values()))  # type: ignore[union-attr]
        for i in range(MAX_FILES):
            at.context.batches.folder.files[f"{i}"] = record  # type: ignore[union-attr]
        with pytest.raises(openai.PermissionDeniedError, match=f"at most {MAX_FILES}"):
            await api.files.create(file=b"x", purpose="batch")


async def test_a_key_has_a_bounded_number_of_unfinished_batches(tmp_path: Path) -> None:
    async with served(tmp_path, FakeEngine(gate=asyncio.Event())) as at:
        api = client(at)
        for _ in range(MAX_BATCHES):
            batch = await begin(api, lines(1))
        with pytest.raises(openai.RateLimitError, match=f"at most {MAX_BATCHES}"):
            await begin(api, lines(1))
        await begin(client(at, "other"), lines(1))
        with pytest.raises(openai.ConflictError, match="unfinished batch"):
            await api.files.delete(batch.input_file_id)


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"files": {"file": b"x"}}, 400),
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, 400),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": b"x"}}, 400),
        ({"data": {"purpose": "batch", "what": "1"}, "files": {"file": b"x"}}, 400),
        ({"data": {"purpose": "batch", "expires_after[seconds]": "1"}, "files": {"file": b"x"}}, 400),
        ({"data": {"purpose": "batch" * 1000}, "files": {"file": b"x"}}, 400),
        ({"json": {"purpose": "batch"}}, 415),
        ({"content": b"--b\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400),
        ({"content": b"", "headers": {"Content-Type": "multipart/form-data"}}, 415),
        ({"data": {"purpose": "batch"}, "files": {"file": b"x"}, "headers": {"Origin": "https://evil.test"}}, 403),
        ({"data": {"purpose": "batch"}, "files": {"file": b"x"}, "headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
    ],
)
async def test_a_wrong_form_is_refused_and_leaves_nothing(tmp_path: Path, form: dict[str, Any], status: int) -> None:
    async with served(tmp_path, api_key=()) as at:
        answer = await at.http.post("/v1/files", **form)
        assert answer.status_code == status, answer.text
        assert error_of(answer)["message"]
        assert list((tmp_path / "batches").glob("file-*")) == []
        form = {"data": {"purpose": "batch"}, "files": {"file": ("../../etc/passwd", b"x")}}
        assert (await at.http.post("/v1/files", **form)).json()["filename"] == "passwd"


async def test_a_client_that_leaves_during_an_upload_leaves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, api_key=()) as at:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/files",
            "query_string": b"",
            "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
        }
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        messages = [
            {"type": "http.request", "body": head + bytes(3 << 20), "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            pass

        await at.app(scope, receive, send)
        assert list((tmp_path / "batches").glob("file-*")) == []


async def test_expired_files_and_old_batches_are_removed_unless_a_batch_reads_them(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with served(tmp_path, engine, max_batch_age=1.0) as at:
        api, folder = client(at), at.context.batches.folder  # type: ignore[union-attr]
        done = await until(api, (await begin(api, lines(1))).id, "completed")
        engine.gate = asyncio.Event()
        running = await begin(api, lines(1))
        async with asyncio.timeout(60):
            while [each async for each in api.files.list()] or folder.batches[done.id].created_at + 1 > time.time():
                await asyncio.sleep(0.02)
        with pytest.raises(openai.NotFoundError):
            await api.files.content(done.output_file_id)
        await folder.sweep()
        assert folder.files.keys() == {running.input_file_id}
        assert folder.batches.keys() == {running.id}
        left = {path.name for path in (tmp_path / "batches").iterdir()}
        assert len(left) == 5
        engine.gate.set()
        await until(api, running.id, "completed")


async def test_the_name_of_a_key_in_the_key_file_owns_its_files(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"

    def write(*names: str, secret: str) -> None:
        file.write_text("".join(f'[{name}]\nhash = "{hash_of(name + secret)}"\n' for name in names))

    write("ada", "bob", secret="1")
    async with served(tmp_path, api_key=(), api_key_file=file) as at:
        batch = await until(client(at, "ada1"), (await begin(client(at, "ada1"), lines(1))).id, "completed")
    write("ada", "bob", secret="2")
    async with served(tmp_path, api_key=(), api_key_file=file) as at:
        assert (await client(at, "ada2").batches.retrieve(batch.id)).status == "completed"
        with pytest.raises(openai.NotFoundError):
            await client(at, "bob2").batches.retrieve(batch.id)
        with pytest.raises(openai.AuthenticationError):
            await client(at, "ada1").batches.retrieve(batch.id)


async def test_a_row_whose_key_is_gone_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    async with served(tmp_path, engine) as at:
        api = client(at)
        batch = await begin(api, lines(2))
        await until(api, batch.id, "in_progress")
    async with served(tmp_path, api_key=("other",)) as at:
        folder = at.context.batches.folder  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while not folder.batches[batch.id].is_over:
                await asyncio.sleep(0.005)
        assert (folder.batches[batch.id].num_done, folder.batches[batch.id].num_failed) == (2, 2)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", Path("/proc/lightwell")):
        with pytest.raises(SettingsError, match="--batch-dir"):
            BatchFolder(Settings(batch_dir=str(path)))
