"""`LLM` answers more inputs in one call than a request may have, in their order."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightwell.server.library.llm import LLM
from lightwell.server.schemas.base import MAX_PROMPTS
from lightwell_client import BadRequest
from tests.server.dialects.heads import classifier

RERANKER = Path(__file__).parents[2] / "e2e" / "reranker"
COUNT = MAX_PROMPTS + 60
TEXTS = [f"{number} foxes" for number in range(COUNT)]


@pytest.fixture(scope="module")
def reranker() -> Iterator[LLM]:
    with LLM(str(RERANKER), threads=1) as made:
        yield made


def test_vectors_of_many_texts_are_those_of_each_text(capsys: pytest.CaptureFixture[str]) -> None:
    with LLM("fables", threads=1) as llm:
        found = llm.embed(TEXTS)
        assert f"{COUNT}/{COUNT}" in capsys.readouterr().err
        assert [each.index for each in found] == list(range(COUNT))
        for number in (0, 63, 64, COUNT - 1):
            assert found[number].data == llm.embed(TEXTS[number])[0].data
        assert found.usage is not None
        assert found.usage.prompt_tokens == sum(len(llm.tokenizer.encode(text).ids) for text in TEXTS)
        ids = [llm.tokenizer.encode(text).ids for text in TEXTS[:70]]
        assert llm.embed(np.array(ids[0])).data == found.data[:1]
        assert [each.data for each in llm.embed(ids, use_tqdm=False)] == [each.data for each in found.data[:70]]
        assert capsys.readouterr().err == ""
        with pytest.raises(BadRequest) as refused:
            llm.embed([*TEXTS[:65], ""])
        assert "inputs 64 to 65 of 66" in refused.value.__notes__[0]


def test_documents_and_pairs_of_any_number_are_scored(reranker: LLM) -> None:
    ranked = reranker.rerank("7 foxes", TEXTS, return_documents=True)
    assert sorted(each.index for each in ranked.results) == list(range(COUNT))
    assert all(one.relevance_score >= two.relevance_score for one, two in pairwise(ranked.results))
    assert all(each.document == {"text": TEXTS[each.index]} for each in ranked.results)
    best = reranker.rerank("7 foxes", TEXTS, top_n=3)
    assert [each.index for each in best.results] == [each.index for each in ranked.results[:3]]
    scores = reranker.score("7 foxes", TEXTS)
    assert [each.index for each in scores] == list(range(COUNT))
    by_index = {each.index: each.relevance_score for each in ranked.results}
    assert scores.scores == [by_index[number] for number in range(COUNT)]
    pairs = reranker.score(["7 foxes"] * 70, TEXTS[:70])
    assert pairs.scores == scores.scores[:70]


def test_lists_of_different_lengths_are_refused(reranker: LLM) -> None:
    with pytest.raises(BadRequest):
        reranker.score(["a"] * 70, ["b"] * 80)


def test_labels_of_many_inputs_are_those_of_each_input(tmp_path: Path) -> None:
    folder = classifier(tmp_path, "bert")
    with LLM(str(folder), threads=1) as llm:
        ids: list[Any] = [[5 + number % 7, 6, 7] for number in range(COUNT)]
        found = llm.classify(ids)
        assert [each.index for each in found] == list(range(COUNT))
        for number in (0, 64, COUNT - 1):
            assert found.data[number].probs == llm.classify([ids[number]]).data[0].probs
