"""Log-probabilities of long prompts: written in pieces, between which the server serves others."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from model.tokenization.detokenizer import Detokenizer
from model.tokenization.tokenizer import Tokenizer
from server.engine.outputs import TokenLogprobs
from server.generation.logprobs import LegacyLogprobs, chat_entries, prompt_entries
from tests.server.serving import write_tokenizer

LENGTH = 1000
IDS = [97 + i % 26 for i in range(LENGTH)]
"""Token ids of letters: an id of the tests' tokenizer is a byte."""
SCORED = [TokenLogprobs.of(token_id, -0.5, 1, ((token_id, -0.5), (65, -1.5))) for token_id in IDS]
MANY_TURNS = 15
"""Iterations of the event loop for `LENGTH` positions: more than for a short prompt, which is one piece."""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path)
    return Tokenizer.from_folder(tmp_path)


async def turns_during(work: Awaitable[Any]) -> tuple[int, Any]:
    """Return how often another task could run during the work, and the result of the work, as a client reads it."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    result = await work
    task.cancel()
    return turns, orjson.loads(orjson.dumps(result))


Write = Callable[[Tokenizer, int], Awaitable[Any]]
FORMS: dict[str, Write] = {
    "legacy": lambda tokenizer, length: LegacyLogprobs(tokenizer, 2, Detokenizer(tokenizer)).entries(
        IDS[:length], SCORED[:length]
    ),
    "chat": lambda tokenizer, length: chat_entries(tokenizer, SCORED[:length], 2),
    "prompt": lambda tokenizer, length: prompt_entries(tokenizer, [None, *SCORED[1:length]], 2),
}


CHOSEN = [{"token": chr(token_id), "logprob": -0.5, "bytes": [token_id]} for token_id in IDS]
RANKED = [{"logprob": -0.5, "rank": 1, "decoded_token": chr(token_id)} for token_id in IDS]
OTHER = {"logprob": -1.5, "rank": 2, "decoded_token": "A"}
EXPECTED: dict[str, Any] = {
    "legacy": {
        "tokens": [chr(token_id) for token_id in IDS],
        "token_logprobs": [-0.5] * LENGTH,
        "top_logprobs": [{chr(token_id): -0.5, "A": -1.5} for token_id in IDS],
        "text_offset": list(range(LENGTH)),
    },
    "chat": [{**each, "top_logprobs": [each, {"token": "A", "logprob": -1.5, "bytes": [65]}]} for each in CHOSEN],
    "prompt": [None, *({str(i): each, "65": OTHER} for i, each in zip(IDS[1:], RANKED[1:], strict=True))],
}


@pytest.mark.parametrize("form", FORMS)
async def test_log_probabilities_of_a_long_prompt_are_written_in_pieces_that_join_without_a_seam(
    form: str, tokenizer: Tokenizer
) -> None:
    few, _ = await turns_during(FORMS[form](tokenizer, 20))
    many, written = await turns_during(FORMS[form](tokenizer, LENGTH))
    assert few <= 1
    assert many >= MANY_TURNS
    assert written == EXPECTED[form]


@pytest.mark.parametrize("form", ["legacy", "chat"])
async def test_nothing_to_write_is_an_empty_list(form: str, tokenizer: Tokenizer) -> None:
    _, written = await turns_during(FORMS[form](tokenizer, 0))
    assert written in ([], {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []})


async def test_two_tokens_of_one_text_are_both_among_the_likeliest(tokenizer: Tokenizer) -> None:
    """Check tokens that are parts of characters. All of them have the text U+FFFD; an old version lost one of them."""
    top = ((0xC3, -0.5), (0xE4, -1.0), (97, -1.5))
    entries = [TokenLogprobs.of(token_id, logprob, 1, top) for token_id, logprob in top]
    written = LegacyLogprobs(tokenizer, 3, Detokenizer(tokenizer))
    fields = orjson.loads(orjson.dumps(await written.entries([0xC3, 0xE4, 97], entries)))
    first, second, letter = fields["top_logprobs"]
    assert first == {"\ufffd": -0.5, "token_id:228": -1.0, "a": -1.5}
    assert second == {"token_id:195": -0.5, "\ufffd": -1.0, "a": -1.5}, "the chosen token has its text's name"
    assert letter == first
