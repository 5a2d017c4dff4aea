"""Rerank, score, classify and predict: scores and labels equal the values of sentence-transformers and transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling

from tests import tiny
from tests.server.dialects.heads import BODY, LONG, answer, by_index, classifier, logits_of, served
from tests.server.dialects.routes import refuses
from tests.server.engine.captures.test_cross_encoders import DOCUMENTS, PAIRS, QUERY, edit, save, theirs
from tests.server.serving import site, tiny_classifier, tiny_config, tiny_encoder

TEMPLATE = (
    '{% for m in messages if m.role == "system" %}{{ m.content }}{% endfor %}'
    'Q: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} '
    'D: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }} is it'
    "{% if add_generation_prompt %} so?{% endif %}"
)
RERANKS = ("/v1/rerank", "/v2/rerank", "/rerank")


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {}),
        ("roberta", {"activation_fn": torch.nn.Identity(), "max_length": 40}),
        ("distilbert", {"prompts": {"query": "Find: "}, "max_length": 31}),
        ("mpnet", {"activation_fn": torch.nn.Sigmoid()}),
        ("modernbert", {"prompts": {"query": "Find: "}, "default_prompt_name": "query", "max_length": 50}),
        ("qwen3", {"activation_fn": torch.nn.Tanh()}),
    ],
)
async def test_scores_and_order_are_those_of_the_library(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = save(family, tmp_path, **options)
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    expected = model.predict(PAIRS)
    logits = model.predict(PAIRS, activation_fn=torch.nn.Identity())
    ranks = [each["corpus_id"] for each in model.rank(QUERY, list(DOCUMENTS))]
    async with served(folder) as at:
        for path in RERANKS:
            found = await answer(at, path, **BODY)
            assert [each["index"] for each in found["results"]] == ranks
            assert np.abs(by_index(found) - expected).max() <= 1e-5
        for name in options.get("prompts", ()):
            prompted = by_index(await answer(at, "/v1/rerank", **BODY, prompt_name=name))
            assert np.abs(prompted - model.predict(PAIRS, prompt_name=name)).max() <= 1e-5
        raw = await answer(at, "/rerank", **BODY, use_activation=False)
        score = await answer(at, "/v1/score", text_1=QUERY, text_2=list(DOCUMENTS))
        tei = await answer(at, "/rerank", query=QUERY, texts=list(DOCUMENTS), truncate=True, raw_scores=True)
    assert np.abs(by_index(raw) - logits).max() <= 1e-5
    assert np.abs([each["score"] for each in score["data"]] - expected).max() <= 1e-5
    assert [each["index"] for each in tei] == ranks
    assert np.abs([each["score"] for each in tei] - logits[ranks]).max() <= 1e-5


@pytest.mark.parametrize(
    ("max_length", "arguments", "prompts", "false_id"),
    [
        (None, {}, {}, 7),
        (None, {"add_generation_prompt": True}, {"ask": "Find it. "}, None),
        (40, {}, {}, 7),
    ],
)
async def test_pairs_that_a_chat_template_writes_score_as_the_library_has_it(
    max_length: int | None, arguments: dict[str, Any], prompts: dict[str, str], false_id: int | None, tmp_path: Path
) -> None:
    raw = tiny.make("qwen3", tmp_path / "raw", pad_token_id=1)
    (raw / "chat_template.jinja").write_text(TEMPLATE)
    limit = {} if max_length is None else {"model_max_length": max_length}
    edit(raw / "tokenizer_config.json", lambda file: file.update(pad_token=tiny.EOS, **limit))
    transformer = Transformer(
        str(raw), transformer_task="text-generation", processing_kwargs={"chat_template": arguments}
    )
    modules = [transformer, LogitScore(5, false_id)]
    name = next(iter(prompts), None)
    CrossEncoder(modules=modules, device="cpu", prompts=prompts, default_prompt_name=name).save(str(tmp_path / "saved"))
    async with served(tmp_path / "saved", TEMPLATE) as at:
        found = await answer(at, "/v1/rerank", **BODY)
        lengths = [len(each.prompt_token_ids) for each in at.engine.submitted]
        await refuses(at, "/v1/rerank", {**BODY, "truncation_side": "left"}, param="truncation_side")
    assert np.abs(by_index(found) - theirs(tmp_path / "saved").ravel()).max() <= 1e-5
    assert (max(lengths) == max_length) == (max_length is not None)


async def test_an_answer_holds_what_was_asked_for(tmp_path: Path) -> None:
    async with served(save("bert", tmp_path)) as at:
        documents = [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]]
        best = await answer(at, "/v2/rerank", query=QUERY, documents=documents, top_n=2, return_documents=True)
        texts = await answer(at, "/rerank", query=QUERY, texts=list(DOCUMENTS), return_text=True, truncate=True)
        same = await answer(at, "/rerank", query=QUERY, documents=["a"] * 5, top_n=0)
        num_tokens = sum(len(each.prompt_token_ids) for each in at.engine.submitted[:4])
    assert len(best["results"]) == 2
    assert all(each["document"] == {"text": DOCUMENTS[each["index"]]} for each in best["results"])
    assert best["usage"]["prompt_tokens"] == best["usage"]["total_tokens"] == num_tokens
    assert best["meta"]["api_version"] == {"version": "2"}
    assert best["id"].startswith("rerank-")
    assert best["model"] == "org/tiny"
    assert [each["text"] for each in texts] == [DOCUMENTS[each["index"]] for each in texts]
    assert set(texts[0]) == {"index", "score", "text"}
    assert [each["index"] for each in same["results"]] == [0, 1, 2, 3, 4]
    assert "document" not in same["results"][0]


async def test_score_pairs_one_with_many_either_way_or_each_with_its_own(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    others = list(DOCUMENTS[:3])
    cases: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
        ({"text_1": QUERY, "text_2": "a"}, [(QUERY, "a")]),
        ({"queries": QUERY, "documents": others}, [(QUERY, each) for each in others]),
        ({"data_1": others, "data_2": [QUERY]}, [(each, QUERY) for each in others]),
        ({"queries": others, "items": others[::-1]}, list(zip(others, others[::-1], strict=True))),
    ]
    async with served(folder) as at:
        for body, pairs in cases:
            for path in ("/score", "/v1/score"):
                found = await answer(at, path, **body)
                assert (found["object"], found["model"]) == ("list", "org/tiny")
                assert [(each["index"], each["object"]) for each in found["data"]] == [
                    (i, "score") for i in range(len(pairs))
                ]
                assert np.abs([each["score"] for each in found["data"]] - model.predict(pairs)).max() <= 1e-5
        await refuses(
            at, "/score", {"text_1": others, "text_2": others[:2]}, "2 texts, but 3 in text_1", param="text_2"
        )
        await refuses(at, "/score", {"text_1": "a"}, "text_1 is given; text_1 and text_2; or queries and documents")
        await refuses(at, "/score", {"text_1": "a", "documents": "b"}, param="text_1")


async def test_a_pair_that_is_too_long_is_cut_where_its_api_cuts_and_else_named(tmp_path: Path) -> None:
    """Truncate pairs as sentence-transformers does for folders that it saved, always in Cohere's second API, and never
    in the API of Text Embeddings Inference.
    """
    bare, declared = classifier(tmp_path, num_labels=1), save("bert", tmp_path / "saved", max_length=30)
    documents = ["a", "b", LONG]
    logits = [logits_of(bare, QUERY, each, truncation=True, max_length=80).item() for each in documents]
    expected = 1 / (1 + np.exp(np.negative(logits)))
    async with served(bare, max_model_len=80) as at:
        for path, body, field in (
            ("/v1/rerank", {"query": QUERY, "documents": documents}, "documents[2]"),
            ("/v2/rerank", {"query": QUERY, "documents": documents, "truncate": False}, "documents[2]"),
            ("/v1/score", {"text_1": QUERY, "text_2": documents}, "text_2[2]"),
            ("/v1/score", {"text_1": LONG, "text_2": "a"}, "text_1"),
        ):
            await refuses(at, path, body, "at most 80 are accepted", param=field, code="context_length_exceeded")
        refused = await at.post("/rerank", json_of(documents))
        cut = [
            await answer(at, "/v2/rerank", query=QUERY, documents=documents),
            await answer(at, "/v1/rerank", query=QUERY, documents=documents, truncate=True),
            await answer(at, "/rerank", query=QUERY, documents=documents, truncate_prompt_tokens=-1),
        ]
    assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation")
    assert refused.json()["error"].startswith("texts[2]: the input has")
    assert all(np.abs(np.subtract(by_index(found), expected)).max() <= 1e-5 for found in cut)
    async with served(declared) as at:
        found = await answer(at, "/v1/rerank", query=QUERY, documents=documents)
        refused = await at.post("/rerank", json_of(documents))
    model = CrossEncoder(str(declared), device="cpu", local_files_only=True)
    assert np.abs(by_index(found) - model.predict([(QUERY, each) for each in documents])).max() <= 1e-5
    assert refused.status_code == 400


def json_of(texts: list[str]) -> dict[str, Any]:
    """Return a body of Text Embeddings Inference."""
    return {"query": QUERY, "texts": texts}


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_pair_is_cut_to_the_tokens_that_a_request_allows(side: str, tmp_path: Path) -> None:
    folder = classifier(tmp_path, num_labels=1)
    edit(folder / "tokenizer_config.json", lambda file: file.update(truncation_side=side))
    expected = [
        logits_of(folder, first, second, truncation="longest_first", max_length=25).item()
        for first, second in ((LONG[:300], LONG[60:400]), ("a", LONG[:300]), (LONG[:300], "a"))
    ]
    async with served(folder) as at:
        body = {"text_1": [LONG[:300], "a", LONG[:300]], "text_2": [LONG[60:400], LONG[:300], "a"]}
        found = await answer(
            at, "/score", **body, truncate_prompt_tokens=25, truncation_side=side, use_activation=False
        )
        tiny_error = await at.error("/score", {**body, "truncate_prompt_tokens": 2}, 400)
    assert np.abs(np.subtract([each["score"] for each in found["data"]], expected)).max() <= 1e-5
    assert (tiny_error["param"], "too few for" in tiny_error["message"]) == ("truncate_prompt_tokens", True)


async def test_documents_are_cut_to_their_own_number_of_tokens(tmp_path: Path) -> None:
    folder = classifier(tmp_path, num_labels=1)
    async with served(folder) as at:
        await answer(at, "/v1/rerank", query="a", documents=[LONG, "b"], max_tokens_per_doc=9)
        await answer(at, "/v1/rerank", query=LONG[:200], documents=["b"], max_tokens_per_query=5)
        lengths = [len(each.prompt_token_ids) for each in at.engine.submitted]
        texts = [at.model.tokenizer.decode(each.prompt_token_ids) for each in at.engine.submitted]
        special = lengths[1] - 2
    assert lengths == [special + 1 + 9, special + 2, special + 5 + 1]
    assert texts[0].replace(" ", "").startswith("aonceupona")


async def test_embedding_models_score_by_the_cosine_of_their_vectors(tmp_path: Path) -> None:
    modules = [Transformer(str(tiny.make("bert", tmp_path / "raw"))), Pooling(24, "mean")]
    modules[1] = Pooling(modules[0].get_embedding_dimension(), "mean")
    prompts = {"query": "to be found: "}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(tmp_path / "saved"))
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    expected = model.similarity(model.encode([QUERY]), model.encode(list(DOCUMENTS)))[0].numpy()
    asked = model.similarity(model.encode([QUERY], prompt_name="query"), model.encode(list(DOCUMENTS)))[0].numpy()
    async with served(tmp_path / "saved") as at:
        found = await answer(at, "/v1/rerank", **BODY)
        num_asked = len(at.engine.submitted)
        of_query = await answer(at, "/v1/rerank", **BODY, prompt_name="query")
        each = await answer(at, "/score", text_1=list(DOCUMENTS), text_2=list(DOCUMENTS))
        error = await at.error("/v1/rerank", {**BODY, "use_activation": False}, 400)
        await refuses(at, "/classify", {"input": "a"}, code="not_supported_by_model")
        long, short = ["a " * 600], ["b", "c"]
        too_long = [
            await at.error("/v1/rerank", {"query": long[0], "documents": short, "truncate": False}, 400),
            await at.error("/v1/rerank", {"query": "a", "documents": short + long, "truncate": False}, 400),
            await at.error("/score", {"text_1": long, "text_2": short, "truncate": False}, 400),
            await at.error("/score", {"text_1": "a", "text_2": short + long, "truncate": False}, 400),
        ]
    assert [error["param"] for error in too_long] == ["query", "documents[2]", "text_1[0]", "text_2[2]"]
    assert np.abs(by_index(found) - expected).max() <= 1e-5
    assert np.abs(by_index(of_query) - asked).max() <= 1e-5, "the prompt is the query's alone"
    assert num_asked == 1 + len(DOCUMENTS)
    assert np.abs(np.subtract([one["score"] for one in each["data"]], 1)).max() <= 1e-5
    assert error["param"] == "use_activation"


async def test_models_that_cannot_score_say_which_can(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_config()) as at:
        error = await at.error("/v1/rerank", BODY, 400)
        told = (await at.http.get("/v1/capabilities")).json()["routes"]["/v1/rerank"]
        assert at.engine.submitted == []
    assert error["code"] == "not_supported_by_model"
    assert "cross-encoders" in error["message"]
    assert "embedding models" in error["message"]
    assert told["reason"] in error["message"]
    async with served(save("bert", tmp_path / "three", num_labels=3)) as at:
        error = await at.error("/score", {"text_1": "a", "text_2": "b"}, 400)
    assert "has 3 labels, and a score is of one; POST /classify" in error["message"]


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"query": 1}, "query", "valid string"),
        ({"documents": []}, "documents", "at least 1"),
        ({"documents": "a"}, "documents", "list"),
        ({"documents": ["a", {"text": "b", "image": "c"}]}, "documents[1]", "image"),
        ({"documents": ["a"] * 10_001}, "documents", "at most 10000"),
        ({"top_n": -1}, "top_n", "greater than or equal to 0"),
        ({"rank_fields": ["title"]}, "rank_fields", "the field of a document is always text"),
        ({"prompt_name": "x"}, "prompt_name", "unknown prompt 'x'"),
        ({"truncation_side": "middle"}, "truncation_side", "'left' or 'right'"),
        ({"padding": "max_length"}, "padding", "texts are never padded"),
    ],
)
async def test_bad_input_names_the_field(change: dict[str, Any], param: str, said: str, tmp_path: Path) -> None:
    async with served(classifier(tmp_path, num_labels=1)) as at:
        for path in RERANKS:
            error = await at.error(path, {**BODY, **change}, 400)
            assert error["param"].startswith(param)
            assert said in error["message"]
        assert at.engine.submitted == []


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
    assert "has no classification head" in error["message"]
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
