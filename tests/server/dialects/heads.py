"""Helpers for the tests of rerank, score, classify and predict: applications around models that sentence-transformers
or transformers saved, and the expected numbers of these libraries.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests import tiny
from tests.server.engine.captures.test_cross_encoders import DOCUMENTS, QUERY, edit
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, site

BODY: dict[str, Any] = {"query": QUERY, "documents": list(DOCUMENTS)}
LONG = " ".join(["Once upon a time there was a miller, and he had three sons."] * 20)


def served(folder: Path, template: str | None = None, **settings: Any) -> Any:
    """Return an application around a folder's network, with the network's own context."""
    engine = InlineEngine(folder=folder)
    length = engine.model_config.max_model_len
    engine.engine_info = replace(INFO, max_model_len=length)
    options = {"config": engine.model_config, "max_model_len": length, "template": template, **settings}
    return site(folder, engine, **options)


async def answer(at: Site, path: str, **body: Any) -> Any:
    found = await at.post(path, body)
    assert found.status_code == 200, found.text
    return found.json()


def by_index(answered: dict[str, Any]) -> list[float]:
    """Return the scores of a rerank answer in the order of the documents."""
    return [each["relevance_score"] for each in sorted(answered["results"], key=lambda each: each["index"])]


def classifier(top: Path, family: str = "bert", **options: Any) -> Path:
    """Make a folder as transformers saves it. The tokenizer gives the texts of a pair different token types if the
    network has token types.
    """
    folder = tiny.make_classifier(family, top / family, **options)

    def pair_up(file: dict[str, Any]) -> None:
        single = file["post_processor"]["single"]
        end = [{"SpecialToken": {**single[-1]["SpecialToken"], "type_id": 1}}] if "SpecialToken" in single[-1] else []
        file["post_processor"]["pair"] = [*single, {"Sequence": {"id": "B", "type_id": 1}}, *end]

    edit(folder / "tokenizer.json", pair_up)
    names = ["input_ids", "token_type_ids", "attention_mask"] if family == "bert" else ["input_ids", "attention_mask"]
    edit(folder / "tokenizer_config.json", lambda file: file.update(model_input_names=names))
    return folder


def logits_of(folder: Path, *texts: Any, **options: Any) -> np.ndarray:
    """Return transformers' logits [label] of a text or a pair, tokenised with these options."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = tiny.theirs(folder, torch.float32)
    with torch.no_grad():
        found: np.ndarray = network(**tokenizer(*texts, return_tensors="pt", **options)).logits[0].numpy()
    return found
