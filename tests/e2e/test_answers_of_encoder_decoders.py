"""Greedy answers of an encoder-decoder equal the answers of transformers, with a forced first token and forbidden
tokens.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lightwell.server.library.llm import LLM
from tests import tiny

TEXTS = (
    "The wolf said: little pig, let me come in!",
    "Once upon a time",
    "a",
    "There were 3 bears, and they had 12 bowls of porridge; the porridge was too hot.",
    "Übermut tut selten gut. Où est le château ?",
)
NUM_TOKENS = 12


def generated(folder: Path, ids: list[int]) -> list[int]:
    """Return the token ids after the start token."""
    model = tiny.theirs(folder, torch.float32)
    options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "num_beams": 1, "use_cache": False}
    found: list[int] = model.generate(torch.tensor([ids]), **options)[0].tolist()
    return found[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian network with files that forbid its most likely tokens."""
    folder = tiny.make_variant("marian", tmp_path_factory.mktemp("marian"))
    path = folder / "generation_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = {token_id for text in TEXTS for token_id in generated(folder, tokenizer(text).input_ids)}
    forbidden = sorted(wanted - set(tokenizer.all_special_ids))[:3]
    assert forbidden
    changed = {**values, "bad_words_ids": [[i] for i in forbidden], "forced_bos_token_id": 40}
    path.write_text(json.dumps(changed), encoding="utf-8")
    return folder


def test_answers_are_those_of_transformers(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with LLM(str(folder), dtype="float32", threads=1) as llm:
        answers = llm.generate(TEXTS, max_tokens=NUM_TOKENS - 1, temperature=0)
    for text, answer in zip(TEXTS, answers, strict=True):
        expected = generated(folder, tokenizer(text).input_ids)
        assert expected[0] == 40
        # Our text lacks the forced first token and the end token of transformers' output.
        said = [token_id for token_id in expected[1:] if token_id != tokenizer.eos_token_id]
        ours = answer.outputs[0].token_ids or []
        assert [token_id for token_id in ours if token_id != tokenizer.eos_token_id] == said
