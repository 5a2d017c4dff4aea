"""/v1/files and /v1/batches: owners, bounds, and hostile requests and folders."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from msgspec import structs

from lightwell.server.batches.folder import MAX_FILES, BatchFolder
from lightwell.server.batches.records import StoredFile
from lightwell.server.batches.runner import MAX_BATCHES
from lightwell.server.config.auth.keys import hash_of
from lightwell.server.config.settings import Settings, SettingsError
from tests.server.batches.site import ENDPOINT, Held, begin, client, line, lines, served, until
from tests.server.fake_client import FakeEngine
from tests.server.serving import error_of, site


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
        folder = at.context.batches.folder  # type: ignore[union-attr]
        for i in range(MAX_FILES):
            record = structs.replace(folder.batches[batch.id], id=f"batch_{i:032x}", order=i, status="completed")
            folder.batches[record.id] = record
        await api.batches.cancel(batch.id)
        await until(api, batch.id, "cancelled")
        batch = await begin(api, lines(1))
        assert f"batch_{0:032x}" not in folder.batches
        assert f"batch_{1:032x}" in folder.batches
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


async def test_expired_files_and_old_batches_are_removed_unless_a_batch_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, now = FakeEngine(), time.time
    async with served(tmp_path, engine, max_batch_age=1000.0) as at:
        api, folder = client(at), at.context.batches.folder  # type: ignore[union-attr]
        done = await until(api, (await begin(api, lines(1))).id, "completed")
        engine.gate = asyncio.Event()
        running = await begin(api, lines(1))
        async with asyncio.timeout(60):
            while len(engine.submitted) < 2:
                await asyncio.sleep(0.005)
        monkeypatch.setattr(time, "time", lambda: now() + 2000)
        assert [each async for each in api.files.list()] == []
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


async def test_rows_use_the_tokens_of_their_key_and_none_of_its_places(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    limits = "max_requests = 1\ntokens_per_minute = 1000000\n"
    file.write_text(f'[ada]\nhash = "{hash_of("ada")}"\n{limits}')
    engine = Held()
    async with served(tmp_path, engine, api_key=(), api_key_file=file) as at:
        api, (known,) = client(at, "ada"), at.context.keys.known
        batch = await begin(api, b"".join(line(i, prompt="ab" if i < 3 else "held") for i in range(9)))
        await until(api, batch.id, "in_progress", num_done=3)
        charged = [each.handle.request_context.record.use for each in engine.submitted]  # type: ignore[union-attr]
        assert charged == [known.use] * 9
        assert (await api.completions.create(model="org/tiny", prompt="ab", max_tokens=4)).usage is not None
        assert known.use.num_requests == 0


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", Path("/proc/lightwell")):
        with pytest.raises(SettingsError, match="--batch-dir"):
            BatchFolder(Settings(batch_dir=str(path)))
