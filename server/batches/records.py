"""Records of files and batches: JSON in the folder, and OpenAI's objects on the wire. Times: seconds since 1970."""

import time
from typing import Any, Literal

import msgspec

ACTIVE = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that is not over."""
Status = Literal["validating", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled"]


class Record(msgspec.Struct, kw_only=True):
    """The fields of both kinds."""

    id: str
    owner: str
    """The owner of the API key (`ApiKey.owner`); "" on a server without keys."""
    order: int
    """Place in lists: nanoseconds since 1970 at the creation."""

    @property
    def created_at(self) -> int:
        return self.order // 10**9

    def answer(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        raise NotImplementedError


class StoredFile(Record, kw_only=True):
    """A file: the input of batches, or their output."""

    bytes: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]

    @property
    def is_expired(self) -> bool:
        return self.expires_at <= time.time()

    def answer(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class LineError(msgspec.Struct):
    """The reason why an input cannot be run."""

    code: str
    message: str
    line: int | None = None
    """Number of the line, from 1."""
    param: str | None = None


class Batch(Record, kw_only=True):
    """A batch, with the time of each state that it reached."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None
    expires_at: int
    output_seconds: int
    """Age at which the files of its answers expire."""
    status: Status = "validating"
    times: dict[str, int] = msgspec.field(default_factory=dict)
    """Seconds since 1970, by the states after `validating`."""
    errors: list[LineError] = msgspec.field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_lines: int = 0
    num_done: int = 0
    num_failed: int = 0

    @property
    def is_over(self) -> bool:
        return self.status not in ACTIVE

    def answer(self) -> dict[str, Any]:
        errors = {"object": "list", "data": [msgspec.to_builtins(each) for each in self.errors]}
        states = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id if self.is_over else None,
            "error_file_id": self.error_file_id if self.is_over else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{state}_at": self.times.get(state) for state in states},
            "request_counts": {
                "total": self.num_lines,
                "completed": self.num_done - self.num_failed,
                "failed": self.num_failed,
            },
            "metadata": self.metadata,
        }
