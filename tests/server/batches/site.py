"""Batches over the fake engine, with the `openai` package as their client."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.request import EngineRequest
from tests.server.fake_client import FakeEngine, FakeHandle
from tests.server.serving import Site, site

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


class Held(FakeEngine):
    """Answers only prompts that begin with "a"."""

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> FakeHandle:
        self.gate = None if request.prompt_token_ids[0] == ord("a") else asyncio.Event()
        return await super().submit(request, request_context)
