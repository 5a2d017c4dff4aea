"""Vectors for folders that sentence-transformers writes, with every option that is honoured."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from lightwell.server.library.llm import LLM
from tests import tiny

TEXTS = (
    "a",
    "The WOLF said: Little Pig, Little Pig, let me come in!",
    "Once upon a time there was a little girl who lived in a house beside the wood, and there were 3 bears.",
    "ÜBERMUT tut selten gut. Où est le Château ? 茨姫は眠っている。",
)


@dataclass(frozen=True)
class Options:
    family: str
    pooling: str | tuple[str, ...]
    normalize: bool
    length: int
    """Most tokens: the longer texts are truncated."""
    lowercase: bool = False
    older: str = ""
    """The file with the length and case in versions before 6; "" uses the installed version's own files."""
    dense: tuple[int, ...] = ()
    """Widths after each dense layer; all but the last are linear."""


OPTIONS = (
    Options("bert", "cls", normalize=False, length=12),
    Options("mpnet", "lasttoken", normalize=True, length=16, lowercase=True, older="sentence_roberta_config.json"),
    Options("modernbert", "mean", normalize=False, length=20, lowercase=True),
    Options("embedding_gemma", "mean", normalize=True, length=90, dense=(96, 48)),
    Options("roberta", ("max", "weightedmean"), normalize=False, length=30),
    Options("distilbert", ("cls", "mean_sqrt_len_tokens", "lasttoken"), normalize=True, length=30, dense=(64,)),
)


def save(options: Options, top: Path) -> Path:
    raw = tiny.make_variant(options.family, top / "raw")
    saved = not options.older
    transformer = Transformer(
        str(raw), max_seq_length=options.length if saved else None, do_lower_case=options.lowercase and saved
    )
    modules: list[Any] = [transformer, Pooling(transformer.get_embedding_dimension(), options.pooling)]
    for width in options.dense:
        is_last = width == options.dense[-1]
        before = modules[-1].get_embedding_dimension()
        modules.append(Dense(before, width, bias=is_last, activation_function=torch.nn.Tanh() if is_last else None))
    modules += [Normalize()] if options.normalize else []
    prompts = {"query": "Task: search | Query: "}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(top / "folder"))
    if options.older:
        text = f'{{"max_seq_length": {options.length}, "do_lower_case": {str(options.lowercase).lower()}}}'
        (top / "folder" / "sentence_bert_config.json").unlink()
        (top / "folder" / options.older).write_text(text, encoding="utf-8")
    return top / "folder"


@dataclass(frozen=True)
class Case:
    options: Options
    llm: LLM
    theirs: SentenceTransformer

    def embed(self, **more: Any) -> np.ndarray:
        return self.llm.embed(TEXTS, **more).matrix


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda options: options.family)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = save(request.param, tmp_path_factory.mktemp(request.param.family))
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    with LLM(str(folder), dtype="float32", threads=1) as llm:
        yield Case(request.param, llm, theirs)


def test_the_vectors_are_those_of_sentence_transformers(case: Case) -> None:
    for prompt in (None, "query"):
        found = case.embed(extra_body={"prompt_name": prompt} if prompt else {})
        expected = case.theirs.encode(list(TEXTS), prompt_name=prompt, batch_size=1, convert_to_numpy=True)
        assert found.shape == expected.shape
        assert abs(found - expected).max() < 1e-5
    lengths = np.linalg.norm(found, axis=1)
    assert np.allclose(lengths, 1.0, atol=1e-5) == case.options.normalize


def test_every_option_of_the_folder_shows_in_the_vectors(case: Case) -> None:
    """Check that every option changes the vectors: otherwise the test above would pass for a server that ignores
    one.
    """
    found = case.embed()

    def changes(**more: Any) -> bool:
        other = case.embed(**more)
        return other.shape != found.shape or bool(abs(other - found).max() > 1e-3)

    pooling = case.options.pooling
    declared = {pooling.removesuffix("token")} if isinstance(pooling, str) and not case.options.dense else set()
    for other in {"mean", "cls", "last"} - declared:  # by name, a pooling leaves the dense layers out
        assert changes(pooling=other)
    assert changes(normalize=not case.options.normalize)
