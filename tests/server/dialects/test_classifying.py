"""POST /v1/classify, /classify and /predict: labels equal the labels of transformers' pipeline and of CrossEncoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from sentence_transformers import CrossEncoder

from tests.server.dialects.heads import LONG, answer, classifier, logits_of, served
from tests.server.dialects.routes import refuses
from tests.server.engine.captures.test_cross_encoders import DOCUMENTS, PAIRS, QUERY, save
from tests.server.serving import site, tiny_classifier, tiny_encoder

TEXTS = list(DOCUMENTS)
NAMES = {0: "no", 1: "maybe", 2: "yes"}


def pipeline_of(folder: Path) -> list[dict[str, float]]:
    """Return the score of each label for each text, as transformers has it."""
    pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
    return [{one["label"]: one["score"] for one in each} for each in pipeline(TEXTS, top_k=None)]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"id2label": NAMES}),
        ("roberta", {"id2label": NAMES, "problem_type": "multi_label_classification"}),
        ("modernbert", {"id2label": NAMES, "problem_type": "regression"}),
        ("distilbert", {"num_labels": 1}),
        ("qwen3", {"id2label": NAMES, "pad_token_id": 1}),
    ],
)
async def test_labels_are_those_of_a_pipeline(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = classifier(tmp_path, family, **options)
    expected = pipeline_of(folder)
    names = list(expected[0]) if "id2label" not in options else list(NAMES.values())
    async with served(folder) as at:
        for path in ("/v1/classify", "/classify"):
            found = await answer(at, path, input=TEXTS)
            assert (found["object"], found["model"]) == ("list", "org/tiny")
            for i, (each, told) in enumerate(zip(found["data"], expected, strict=True)):
                assert (each["index"], each["num_classes"]) == (i, len(names))
                assert each["label"] == max(told, key=told.__getitem__)
                assert np.abs(np.subtract(each["probs"], [told[name] for name in names])).max() <= 1e-5
        batch = await answer(at, "/predict", inputs=[[text] for text in TEXTS])
        ids = [list(each.prompt_token_ids) for each in at.engine.submitted[: len(TEXTS)]]
        of_ids = await answer(at, "/classify", input=ids)
        logits = await answer(at, "/classify", input=TEXTS[0], use_activation=False)
    for each, told in zip(batch, expected, strict=True):
        assert [one["label"] for one in each] == sorted(told, key=told.__getitem__, reverse=True)
        assert all(abs(one["score"] - told[one["label"]]) <= 1e-5 for one in each)
    assert of_ids["data"] == found["data"]
    assert found["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert np.abs(np.subtract(logits["data"][0]["probs"], logits_of(folder, TEXTS[0]))).max() <= 1e-5


async def test_pairs_have_the_labels_of_the_library(tmp_path: Path) -> None:
    folder = save("bert", tmp_path, 3)
    expected = CrossEncoder(str(folder), device="cpu", local_files_only=True).predict(PAIRS)
    async with served(folder) as at:
        found = await answer(at, "/predict", inputs=[list(pair) for pair in PAIRS])
        raw = await answer(at, "/predict", inputs=[list(pair) for pair in PAIRS], raw_scores=True)
    for each, numbers in zip(found, expected, strict=True):
        assert [one["label"] for one in each] == [f"LABEL_{i}" for i in np.argsort(-numbers)]
        assert np.abs([one["score"] for one in each] - np.sort(numbers)[::-1]).max() <= 1e-5
    assert raw == found, "its files name no function of the logits"


async def test_one_input_may_be_written_in_each_shape_of_text_embeddings_inference(tmp_path: Path) -> None:
    async with served(classifier(tmp_path, id2label=NAMES)) as at:
        one = await answer(at, "/predict", inputs=QUERY)
        assert await answer(at, "/predict", inputs=[QUERY]) == one
        assert await answer(at, "/predict", inputs=[[QUERY]]) == [one]
        pair = await answer(at, "/predict", inputs=[QUERY, "a"])
        assert await answer(at, "/predict", inputs=[["b"], [QUERY, "a"], [QUERY]]) == [
            await answer(at, "/predict", inputs="b"),
            pair,
            one,
        ]
        assert [set(label) for label in one] == [{"score", "label"}] * 3
        assert pair != one
        wrong: list[Any] = [["a", "b", "c"], [["a", "b", "c"]], [], [[]], 1, [["a"], "b"]]
        for inputs in wrong:
            refused = await at.post("/predict", {"inputs": inputs})
            assert refused.status_code == 400, inputs
            assert refused.json()["error_type"] == "Validation"
            assert "inputs" in refused.json()["error"]


async def test_texts_that_are_too_long_are_named_or_cut(tmp_path: Path) -> None:
    folder = classifier(tmp_path, num_labels=3)
    expected = logits_of(folder, LONG, truncation=True, max_length=70)
    cut: dict[str, Any] = {"input": [LONG], "use_activation": False}
    async with served(folder, max_model_len=70) as at:
        await refuses(at, "/classify", {"input": ["a", LONG]}, param="input[1]", code="context_length_exceeded")
        refused = await at.post("/predict", {"inputs": LONG})
        right = await answer(at, "/classify", **cut, truncate=True)
        fewer = await answer(at, "/classify", **cut, truncate_prompt_tokens=70)
        left = await answer(at, "/classify", **cut, truncate=True, truncation_side="left")
        await answer(at, "/predict", inputs=LONG, truncate=True, truncation_direction="Left")
        ends, of_tei = (list(each.prompt_token_ids) for each in at.engine.submitted[-2:])
    assert (refused.status_code, "inputs: the input has" in refused.json()["error"]) == (400, True)
    assert np.abs(right["data"][0]["probs"] - expected).max() <= 1e-5
    assert fewer["data"] == right["data"]
    assert left["data"] != right["data"]
    whole = transformers.AutoTokenizer.from_pretrained(folder)(LONG)["input_ids"]
    assert ends == of_tei == [whole[0], *whole[-69:]]


async def test_a_model_without_a_head_says_so(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder()) as at:
        refused = await at.post("/predict", {"inputs": "a"})
        error = await at.error("/v1/classify", {"input": "a"}, 400)
        told = (await at.http.get("/v1/capabilities")).json()["routes"]
    assert "has no head that labels an input" in error["message"]
    assert refused.json() == {"error": error["message"].replace("/v1/classify", "/predict"), "error_type": "Validation"}
    assert (told["/predict"]["works"], told["/v1/rerank"]["works"]) == (False, True)


# ---- many


MANY = [f"number {i * 7919 % 10_007}" for i in range(2_000)]


async def test_thousands_of_documents_are_scored_each_with_its_own_score(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_classifier()) as at:
        found = await answer(at, "/v1/rerank", query="q", documents=[{"text": text} for text in MANY])
        alone = [await answer(at, "/score", text_1="q", text_2=MANY[i]) for i in (0, 255, 256, 1_999)]
        num_submitted = len(at.engine.submitted)
        error = await at.error("/v1/rerank", {"query": "q", "documents": [*MANY[:1_000], "x" * 70, *MANY[1_000:]]}, 400)
    assert (error["param"], "has 71 tokens" in error["message"]) == ("documents[1000]", True)
    scores = {each["index"]: each["relevance_score"] for each in found["results"]}
    assert sorted(scores) == list(range(2_000))
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert [scores[i] for i in (0, 255, 256, 1_999)] == [each["data"][0]["score"] for each in alone]
    assert num_submitted == 2_004
    assert found["usage"]["prompt_tokens"] == sum(len("q") + len(text) for text in MANY)
