"""Long texts and many inputs: no walk over characters, inputs in turns, and rejection before all are tokenised."""

import asyncio
import json
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lightwell
from lightwell.model.tokenization.tokenizer import Encoding, Tokenizer
from lightwell.server.dispatch.admission import Admission
from lightwell.server.generation.completion import completion_jobs
from lightwell.server.generation.embeddings import embed_inputs
from lightwell.server.generation.prompts.inputs import read_inputs
from lightwell.server.generation.prompts.prompt import read_prompts
from lightwell.server.generation.request import PromptRequest
from lightwell.server.generation.supported_routes import CLASSIFICATIONS, SCORINGS, SPARSE
from lightwell.server.http.errors import QueueFull
from lightwell.server.http.tensor_formats import WRITE_BYTES, Format
from lightwell.server.schemas.embeddings import EmbeddingRequest
from lightwell.server.schemas.inspect.inputs import InputFields
from tests.server.dialects.routes import at_path, refuses
from tests.server.dialects.test_bad_input import GOOD
from tests.server.dialects.test_disconnect import Visitor
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, site, tiny_config, tiny_encoder_decoder

TEXT = "a b " * 10_000
USER = {"role": "user", "content": TEXT}
FIRST = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": TEXT}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": TEXT}]}
CODE = str(Path(lightwell.__file__).parent)


def with_long_text(value: Any, name: str = "") -> list[Any]:
    """Return a body once for each of its texts, with that text long."""
    if isinstance(value, str):
        return [] if name in ("role", "type") else [TEXT]
    if isinstance(value, list):
        return [[*value[:i], long, *value[i + 1 :]] for i in range(len(value)) for long in with_long_text(value[i])]
    if isinstance(value, dict):
        return [{**value, key: long} for key, inner in value.items() for long in with_long_text(inner, key)]
    return []


BODIES: list[tuple[str, dict[str, Any]]] = [
    *((path, long) for path, body in GOOD.items() for long in with_long_text(body)),
    ("/v1/messages", {"messages": [FIRST, SAID], "max_tokens": 1}),
    ("/v1/messages", {"messages": [FIRST], "system": TEXT, "max_tokens": 1}),
    ("/v1/messages", {"messages": [FIRST, USE, RESULT], "max_tokens": 1}),
    ("/v1/messages", {"messages": [USER], "truncate": True, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [CALLS, {**USER, "role": "tool", "tool_call_id": "c"}]}),
    ("/v1/chat/completions", {"messages": [USER], "truncate": True, "max_tokens": 1}),
    ("/v1/completions", {"prompt": TEXT, "truncate": True, "max_tokens": 1}),
    ("/v1/responses", {"input": [USER], "truncation": "auto"}),
    ("/v1/responses", {"input": "a", "instructions": TEXT}),
    ("/v1/decisions", {**GOOD["/v1/decisions"], "input": [USER]}),
    ("/v1/trace", {"input": TEXT, "points": ["hook_embed"], "truncate": True}),
    ("/v1/trace", {"input": [USER], "points": ["hook_embed"]}),
    ("/v1/trace", {"input": "a", "completion": TEXT, "points": ["hook_embed"]}),
    ("/tokenize", {"messages": [USER]}),
    ("/api/chat", {"messages": [USER]}),
    ("/api/generate", {"prompt": TEXT, "system": TEXT}),
]


def kind_of(path: str) -> str:
    """Return the models that have the route."""
    return "masked" if path == SPARSE else "classifier" if path in (*SCORINGS, *CLASSIFICATIONS) else "decoder"


KINDS = {
    kind: [*bodies]
    for kind, bodies in groupby(sorted(BODIES, key=lambda each: kind_of(each[0])), lambda each: kind_of(each[0]))
}


class Lines:
    """Counts how often each line of Lightwell runs in the thread of the event loop."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __enter__(self) -> "Lines":
        self._before = sys.gettrace()
        sys.settrace(self._frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _frame(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(CODE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.found[f"{frame.f_code.co_filename}:{frame.f_lineno}"] += 1
        return self._line


@pytest.mark.parametrize("kind", KINDS)
async def test_no_text_is_walked_by_its_characters(kind: str, tmp_path: Path) -> None:
    async with at_path(tmp_path, KINDS[kind][0][0]) as at:
        for path, body in KINDS[kind]:
            with Lines() as lines:
                answer = await at.post(path, body)
            assert answer.status_code in (200, 400)
            (line, times), *_ = lines.found.most_common(1)
            assert times < len(TEXT) // 10, (path, line)


def named_tool(name: str, *tools: str) -> dict[str, Any]:
    """Return a chat that must call a tool, with the tools that it has."""
    return {
        "messages": [FIRST],
        "tools": [{"type": "function", "function": {"name": each}} for each in tools],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }


TOOL = {"name": "t", "input_schema": {"type": "object"}}
OUTPUT = {"type": "function_call_output", "call_id": TEXT, "output": "a"}
CHOICE = {"type": "choice", "instructions": "a", "choices": [{"value": TEXT}, {"value": TEXT}]}
REPEATED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", named_tool(TEXT, "t"), "there is no tool 'a b a"),
    ("/v1/chat/completions", {"messages": [{"role": TEXT, "content": "a"}]}, "got 'a b a"),
    ("/v1/chat/completions", {"messages": [{**CALLS, "role": TEXT}]}, "of the role 'a b a"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": TEXT, "content": "a"}], "continue_final_message": True},
        "its role is 'a b a",
    ),
    (
        "/v1/responses",
        {
            "input": "a",
            "tools": [{"type": "function", "name": "t"}],
            "tool_choice": {"type": "function", "name": TEXT},
        },
        "there is no tool 'a b a",
    ),
    (
        "/v1/messages",
        {"messages": [FIRST], "max_tokens": 1, "tools": [TOOL], "tool_choice": {"type": "tool", "name": TEXT}},
        "there is no tool 'a b a",
    ),
    ("/v1/decisions", {**GOOD["/v1/decisions"], "input": [OUTPUT]}, "the output of 'a b a"),
    ("/v1/decisions", {"input": "a", "questions": [CHOICE]}, "the value 'a b a"),
    ("/v1/systemone", {"state": "a", "questions": {TEXT: {"type": "choice", "criteria": {"x": None}}}}, ""),
]


async def test_no_error_repeats_a_long_value(plain: Site) -> None:
    for path, body, problem in REPEATED:
        answer = await plain.post(path, body)
        assert answer.status_code == 400
        assert problem in answer.json()["error"]["message"]
        assert len(answer.content) < (1000 if problem else 20_000)


LONG = 800
"""Tokens of a long text."""


@dataclass
class Counting:
    """A tokenizer that counts the texts that it reads."""

    real: Tokenizer
    num_texts: int = 0

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        self.num_texts += len(texts)
        return self.real.encode_batch(texts, add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def engine_with_room_for(num_tokens: int) -> FakeEngine:
    admission = Admission(max_requests=10_000, max_tokens=num_tokens, max_capture_bytes=1 << 30)
    return FakeEngine(engine_info=replace(INFO, max_model_len=1000), admission=admission)


@pytest.mark.parametrize("is_text", [True, False])
async def test_a_token_of_a_prompt_takes_little_memory(is_text: bool, tmp_path: Path) -> None:
    text = "".join(chr(0x100 + i) for i in range(LONG // 2))  # two tokens a character
    value = [text] * 100 if is_text else [[250 + i % 6 for i in range(LONG)] for _ in range(100)]
    async with site(tmp_path, engine_with_room_for(1 << 20), max_model_len=1000) as at:
        tracemalloc.start()
        try:
            prompts = await read_prompts(at.model, value, "input")
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert sum(len(prompt.ids) for prompt in prompts) == 100 * LONG
    assert size < 20 * 100 * LONG


READERS: dict[str, tuple[dict[str, Any], str, Callable[[Any, list[str]], Awaitable[Any]]]] = {
    "/v1/embeddings": ({}, "input", lambda context, texts: embed_inputs(context, EmbeddingRequest(input=texts))),
    "/v1/completions": ({}, "prompt", lambda context, texts: completion_jobs(context, PromptRequest(prompt=texts))),
    "/v1/trace": (
        {"points": ["ln_final.hook_scale"]}, "input",
        lambda context, texts: read_inputs(context, InputFields(input=texts)),
    ),
}  # fmt: skip
"""Further fields of a body, the field of the texts, and the function that reads them."""


@pytest.mark.parametrize("path", READERS)
async def test_texts_without_room_are_rejected_before_all_are_tokenised(path: str, tmp_path: Path) -> None:
    more, field, read = READERS[path]
    texts = ["a" * LONG] * 1000  # four groups that are tokenised one after the other
    async with site(tmp_path, engine_with_room_for(10 * LONG), max_model_len=1000, max_num_seqs=32) as at:
        counting = Counting(at.model.tokenizer)
        with pytest.raises(QueueFull) as caught:
            await read(replace(at.model, tokenizer=counting), texts)  # type: ignore[arg-type]  # it has all that is called
        assert caught.value.code == "queue_tokens_full"
        assert 10 < counting.num_texts < 400
        assert (await at.error(path, {field: texts, **more}, 429))["code"] == "queue_tokens_full"
        for accepted in (texts[:10], ["a" * 200] * 100):  # of many short texts, only the ones that run at once count
            assert (await at.post(path, {field: accepted, **more})).status_code == 200
    assert len(at.engine.submitted) == 110


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
async def test_prompts_that_are_cut_need_the_room_of_their_part(kind: str, tmp_path: Path) -> None:
    config = tiny_config() if kind == "decoder" else tiny_encoder_decoder()
    async with site(tmp_path, engine_with_room_for(1000), config=config) as at:
        prompts = [[65] * 2000] * 2
        cut = {"prompt": prompts, "truncate": True, "max_tokens": 4}
        assert (await at.post("/v1/completions", cut)).status_code == 200
        await refuses(at, "/v1/completions", {"prompt": prompts, "max_tokens": 4}, code="context_length_exceeded")


async def test_a_large_answer_is_written_one_choice_at_a_time(plain: Site) -> None:
    body = {"prompt": "a", "max_tokens": 40, "n": 64, "logprobs": 20, "seed": 1}
    visitor = Visitor(plain, "/v1/completions", body)
    await visitor.visit()
    written = [message["body"] for message in visitor.sent if message["type"] == "http.response.body"]
    whole = (await plain.post("/v1/completions", {**body, "n": 1})).json()
    told = json.loads(b"".join(written))
    assert [choice["index"] for choice in told["choices"]] == list(range(64))
    assert all({**choice, "index": 0} == whole["choices"][0] for choice in told["choices"])
    assert list(told) == list(whole)
    assert max(map(len, written)) < 2 * WRITE_BYTES < sum(map(len, written))


async def test_a_long_head_is_written_in_turns(tmp_path: Path) -> None:
    body = {"input": [[1] * 60] * 2000, "points": ["ln_final.hook_scale"]}
    num_turns = 0
    async with site(tmp_path, max_num_queued_requests=4096) as at:
        with Lines() as lines:
            sending = at.post("/v1/trace", body, headers={"Accept": Format.SAFETENSORS.value})
            answering = asyncio.create_task(sending)
            while not answering.done():
                num_turns += any("tensor_formats" in line for line in lines.found)
                lines.found.clear()
                await asyncio.sleep(0)
    content = (await answering).content
    length = int.from_bytes(content[:8], "little")
    assert (length + len(content)) % 8 == 0
    assert num_turns >= length // WRITE_BYTES > 4
