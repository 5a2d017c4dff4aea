"""A real engine with a network that writes one given text: the next token depends on the position only.

Answers are exact, and pass through the grammar, the parser and the stream of the server. The answer is another
one where the grammar does not admit the next token of the text.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.server.fake_client import INFO, FakeEngine
from tests.server.inline_engine import InlineEngine, site_of
from tests.server.serving import END_OF_TEXT, Site, events_of, site, tiny_config, write_tokenizer

PATH = "/v1/chat/completions"
LENGTH = 2048


async def messages_of(
    folder: Path, template: str, text: str, special: Sequence[str], body: dict[str, Any]
) -> dict[str, Any]:
    """Send `body` to a model that writes this text, check that a stream gives the same, and return the only choice."""
    async with scripted_site(folder, template, text, special, body) as at:
        answer = await at.post(PATH, {"temperature": 0, "max_tokens": 800, **body})
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        events = events_of(await at.post(PATH, {"temperature": 0, "max_tokens": 800, **body, "stream": True}))[:-1]
    message, deltas = choice["message"], [event["choices"][0]["delta"] for event in events]
    for name in ("reasoning", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    streamed = []
    for index in range(len(whole)):
        own = [part["function"] for part in parts if part["index"] == index]
        streamed.append((own[0]["name"], "".join(part.get("arguments") or "" for part in own)))
    assert streamed == whole
    assert len({part["index"] for part in parts}) == len(whole)
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice


@asynccontextmanager
async def scripted_site(
    folder: Path, template: str, text: str, special: Sequence[str], body: dict[str, Any]
) -> AsyncIterator[Site]:
    """Run a site with a model that answers `body` with this text; the first of the special tokens ends a text."""
    write_tokenizer(folder, special)
    config = replace(tiny_config(), max_model_len=LENGTH, vocab_size=END_OF_TEXT + len(special))
    asked = {key: body[key] for key in ("messages", "tools", "chat_template_kwargs") if key in body}
    async with site(folder, FakeEngine(), template=template, config=config, max_model_len=LENGTH) as at:
        prompt = (await at.post("/tokenize", asked)).json()["tokens"]
    ids: list[int] = []
    for part in re.split(f"({'|'.join(map(re.escape, special))})", text):
        ids += [END_OF_TEXT + special.index(part)] if part in special else part.encode()
    network(END_OF_TEXT + len(special), len(prompt), [*ids, END_OF_TEXT]).save_pretrained(folder)
    engine = InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=LENGTH))
    async with site_of(engine, template) as at:
        yield at


def network(size: int, length: int, script: list[int]) -> GPT2LMHeadModel:
    """Return a network that writes a script after a prompt of this length, and then repeats its last token."""
    made = _network(size)
    positions, places = torch.zeros(LENGTH, made.config.n_embd), torch.arange(LENGTH)
    positions[places, torch.tensor(script)[(places - length + 1).clamp(0, len(script) - 1)]] = 100.0
    made.transformer.wpe.weight.data = positions
    return made


@cache
def _network(size: int) -> GPT2LMHeadModel:
    """Return a network with next tokens that depend only on the positions. Drawing its weights takes long."""
    config = GPT2Config(
        vocab_size=size, n_embd=size + size % 2, n_positions=LENGTH, n_layer=1, n_head=2, eos_token_id=END_OF_TEXT
    )
    made = GPT2LMHeadModel(config)
    block = made.transformer.h[0]
    for parameter in (*block.attn.c_proj.parameters(), *block.mlp.c_proj.parameters()):
        parameter.data.zero_()
    made.transformer.wte.weight.data = 0.01 * torch.eye(size, config.n_embd)
    return made
