"""Requests with many tokens: their memory, their rejection before all texts are tokenised, large answers."""

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from model.tokenization.tokenizer import Encoding, Tokenizer
from server.dispatch.admission import Admission
from server.generation.completion import completion_jobs
from server.generation.embeddings import embed_inputs
from server.generation.prompts.inputs import read_inputs
from server.generation.prompts.prompt import read_prompts
from server.generation.request import PromptRequest
from server.http.errors import QueueFull
from server.http.tensor_formats import WRITE_BYTES, Format
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.inspect.inputs import InputFields
from tests.server.dialects.routes import refuses
from tests.server.dialects.test_disconnect import Visitor
from tests.server.dialects.test_long_texts import Lines
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, site, tiny_config, tiny_encoder_decoder

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
            prompts = await read_prompts(at.context, value, "input")
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
        counting = Counting(at.context.tokenizer)
        with pytest.raises(QueueFull) as caught:
            await read(replace(at.context, tokenizer=counting), texts)  # type: ignore[arg-type]  # it has all that is called
        assert caught.value.code == "queue_tokens_full"
        assert 10 < counting.num_texts < 400
        assert (await at.error(path, {field: texts, **more}, 429))["code"] == "queue_tokens_full"
        for accepted in (texts[:10], ["a" * 200] * 1000):  # of many short texts, only the ones that run at once count
            assert (await at.post(path, {field: accepted, **more})).status_code == 200
    assert len(at.engine.submitted) == 1010


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
