"""The folder of batch files: records and data on disk, the limits of each owner, and a lock against a second server.

    file-ID.json    record of a file        file-ID.data     its content
    batch_ID.json   record of a batch       batch_ID.data    the answers so far, in the order of the input

A record is written to a new file that replaces the old one, so that a process that ends at any moment leaves the old or
the new record. Records are read once, at the start; names in requests are only looked up among them, and never become
paths. Links are not followed.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

import msgspec

from lightwell.server.batches.records import Batch, Record, StoredFile
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.http.errors import ApiError, Forbidden, InsufficientStorage, NotFound, PayloadTooLarge, shown

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Record)

MAX_FILES = 1000
"""Most files of an owner, and most records of batches."""
RESERVE = 64 << 20
"""Bytes of the disk that files leave free, so that records can be written."""
_RECORD = re.compile(r"((?:file-|batch_)[0-9a-f]{32})\.json")
_OURS = re.compile(r"((?:file-|batch_)[0-9a-f]{32})\.(?:data|new)")
_MAX_RECORD = 1 << 20
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class BatchFolder:
    """The files and batches of all owners. It belongs to one event loop; `do` runs its calls of the system."""

    def __init__(self, settings: Settings) -> None:
        """Lock the folder and read its records. Raises SettingsError if it cannot be used."""
        path = Path(settings.batch_dir or "").expanduser()
        self.settings = settings
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, Batch] = {}
        self.uploads: set[Upload] = set()
        self._threads = ThreadPoolExecutor(4, "batch-files")
        self._saving = asyncio.Lock()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lock = self._open("lock", os.O_RDWR | os.O_CREAT)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            raise SettingsError(f"--batch-dir {str(path)!r:.200}: another server uses this folder") from None
        except OSError as error:
            raise SettingsError(f"--batch-dir {str(path)!r:.200} cannot be used: {error.strerror}") from error

    def close(self) -> None:
        """Give the folder to the next server."""
        self._threads.shutdown()
        os.close(self._lock)
        os.close(self._folder)

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call, which may wait for the disk, from a thread. A task that is cancelled meanwhile
        waits for its end: the files of the call may be closed then.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    # ---- records

    def file(self, owner: str, file_id: str) -> StoredFile:
        """Return an owner's file. Raises NotFound, with the same message for any other id."""
        found = self.files.get(file_id)
        if found is None or found.owner != owner or found.is_expired:
            raise NotFound(f"There is no file {shown(file_id)}.", param="file_id", code="file_not_found")
        return found

    def batch(self, owner: str, batch_id: str) -> Batch:
        """Return an owner's batch. Raises NotFound, with the same message for any other id."""
        found = self.batches.get(batch_id)
        if found is None or found.owner != owner:
            raise NotFound(f"There is no batch {shown(batch_id)}.", param="batch_id", code="batch_not_found")
        return found

    def is_in_use(self, file_id: str) -> bool:
        """Return whether an unfinished batch reads this file."""
        return any(batch.input_file_id == file_id and not batch.is_over for batch in self.batches.values())

    async def save(self, record: StoredFile | Batch) -> None:
        """Write a record, and list it. Raises OSError."""
        async with self._saving:  # the last state is written last
            await self.do(self._write_record, f"{record.id}.json", msgspec.json.encode(record))
        if isinstance(record, Batch):
            self.batches[record.id] = record
        else:
            self.files[record.id] = record

    async def delete(self, record_id: str) -> None:
        """Remove a file or a batch. Raises OSError."""
        self.files.pop(record_id, None)
        self.batches.pop(record_id, None)
        await self.do(self.unlink, f"{record_id}.json", f"{record_id}.data")  # the record first

    async def sweep(self) -> None:
        """Remove expired files, and batches that are over, after --max-batch-age. Raises OSError."""
        now = time.time()
        for file in list(self.files.values()):
            if file.is_expired and not self.is_in_use(file.id):
                await self.delete(file.id)
        for batch in list(self.batches.values()):
            if batch.is_over and batch.created_at + self.settings.max_batch_age <= now:
                await self.delete(batch.id)

    # ---- data

    def open(self, record_id: str) -> BinaryIO:
        """Open the data of a file or a batch for reading. Raises OSError."""
        return os.fdopen(self._open(f"{record_id}.data", os.O_RDONLY), "rb")

    def create(self, name: str, flags: int = os.O_TRUNC) -> FileIO:
        """Open a file of the folder for writing, without a buffer. Raises OSError."""
        return FileIO(self._open(name, os.O_WRONLY | os.O_CREAT | flags), "wb")

    def replace(self, name: str, target: str) -> None:
        """Give a file of the folder another name. It is on the disk when this returns."""
        os.replace(name, target, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    def unlink(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)

    def check_disk(self, num_bytes: int) -> None:
        """Raise InsufficientStorage if the disk has no room for this number of bytes."""
        found = os.fstatvfs(self._folder)
        if (free := found.f_bavail * found.f_frsize - RESERVE) < num_bytes:
            raise disk_full(f"{num_bytes} bytes are needed and {max(0, free)} are free")

    def _open(self, name: str, flags: int) -> int:
        opened = os.open(name, flags | _OPEN, 0o600, dir_fd=self._folder)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise FileNotFoundError(f"{name} is not a regular file")
        return opened

    def _write_record(self, name: str, content: bytes) -> None:
        new = f"{name.removesuffix('.json')}.new"
        try:
            with self.create(new) as file:
                file.write(content)
                os.fsync(file.fileno())
            self.replace(new, name)
        except OSError:
            self.unlink(new)
            raise

    def _read(self) -> None:
        """Read all records, and remove the data that no record names, which a process left that ended early."""
        names = os.listdir(self._folder)
        known = {match[1] for name in names if (match := _RECORD.fullmatch(name))}
        for record_id in known:
            try:
                with os.fdopen(self._open(f"{record_id}.json", os.O_RDONLY), "rb") as file:
                    content = file.read(_MAX_RECORD)
                if record_id.startswith("file-"):
                    self.open(record_id).close()
                    self.files[record_id] = _decoded(content, StoredFile, record_id)
                else:
                    self.batches[record_id] = _decoded(content, Batch, record_id)
            except (OSError, ValueError) as error:
                logger.warning("%s.json of --batch-dir is left out: %s", record_id, error)
        left = [name for name in names if (match := _OURS.fullmatch(name)) and match[1] not in known]
        left += [f"{batch.id}.data" for batch in self.batches.values() if batch.is_over]
        self.unlink(*left, *(name for name in names if name.endswith(".new") and _OURS.fullmatch(name)))


def _decoded(content: bytes, kind: type[R], record_id: str) -> R:
    record = msgspec.json.decode(content, type=kind)
    if record.id != record_id:
        raise ValueError(f"it is the record of {record.id!r:.50}")
    return record


def new_id(kind: str) -> str:
    """Return a random id of 128 bits, which cannot be guessed."""
    return kind + secrets.token_hex(16)


def disk_full(reason: str) -> InsufficientStorage:
    return InsufficientStorage(
        f"The disk of the server's --batch-dir is full: {reason}. Delete files that are no longer needed.",
        code="disk_full",
    )


class Upload:
    """A file that is being received. `finish` keeps it; `drop` removes its received part."""

    def __init__(self, folder: BatchFolder, owner: str, announced: int) -> None:
        """Raise PayloadTooLarge, Forbidden or InsufficientStorage if `announced` bytes are not accepted."""
        self.id = new_id("file-")
        self.size = 0
        self.owner = owner
        self._folder = folder
        own = sum(each.owner == owner for each in folder.files.values())
        own += sum(each.owner == owner for each in folder.uploads)
        if own >= MAX_FILES:
            raise Forbidden(
                f"This key has {own} files; at most {MAX_FILES} are accepted. Delete files that are no longer needed.",
                code="too_many_files",
            )
        self._check(announced)
        folder.check_disk(announced)
        self._file = folder.create(f"{self.id}.data", os.O_EXCL)
        folder.uploads.add(self)

    async def write(self, piece: bytes) -> None:
        """Add a piece. Raises PayloadTooLarge or InsufficientStorage."""
        self._check(self.size + len(piece))
        self.size += len(piece)
        await self._folder.do(self._write, piece)

    async def finish(self, filename: str, seconds: int) -> StoredFile:
        """Return the record of the file, which is on the disk then. Raises InsufficientStorage."""
        now = time.time_ns()
        record = StoredFile(
            id=self.id,
            owner=self.owner,
            order=now,
            bytes=self.size,
            expires_at=now // 10**9 + seconds,
            filename=filename,
            purpose="batch",
        )
        try:
            await self._folder.do(self._sync)
            await self._folder.save(record)
        except OSError as error:
            raise disk_full(error.strerror or str(error)) from error
        self._folder.uploads.discard(self)
        return record

    async def drop(self) -> None:
        """Remove the data, unless `finish` has kept it."""
        self._file.close()
        if self in self._folder.uploads:
            self._folder.uploads.discard(self)
            await self._folder.do(self._folder.unlink, f"{self.id}.data")

    def _check(self, size: int) -> None:
        settings = self._folder.settings
        if size > settings.max_batch_file_bytes:
            raise file_too_large(size, settings.max_batch_file_bytes)
        used = sum(file.bytes for file in self._folder.files.values() if file.owner == self.owner)
        used += sum(other.size for other in self._folder.uploads if other.owner == self.owner and other is not self)
        if used + size > settings.max_batch_bytes:
            raise PayloadTooLarge(
                f"The files of this key have {used} bytes; with this one's {size} they would exceed the "
                f"{settings.max_batch_bytes} that are accepted (--max-batch-bytes). Delete files that are no longer "
                "needed.",
                code="key_files_too_large",
            )

    def _write(self, piece: bytes) -> None:
        self._folder.check_disk(len(piece))
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise disk_full(error.strerror or str(error)) from error

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def file_too_large(size: int, limit: int) -> ApiError:
    """Return the error of a file over the limit; `size` is the number of bytes that are known so far."""
    return PayloadTooLarge(
        f"The file has {size} bytes or more; at most {limit} are accepted (--max-batch-file-bytes).",
        code="file_too_large",
    )
