"""POST /v1/decisions and /v1/systemone of a real server, through the openai package, compared with completions."""

import math
import random
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine
from tests.server.serving import site
from tests.support.processes import Server

INPUT = "Once upon a time there was a miller who had three sons, his mill, an ass, and a cat. " * 8
CHOICES: Any = [{"value": "a cat", "description": "it purrs"}, {"value": True}, {"value": "true"}]
LEVELS: Any = [{"label": "low"}, {"label": "middle", "description": "so so"}, {"label": "high"}]
QUESTIONS: Any = [
    {"type": "predicate", "name": "sons", "instructions": "The miller had sons."},
    {"type": "choice", "instructions": "What purrs?", "choices": CHOICES},
    {"type": "score", "name": "length", "instructions": "How long is it?", "levels": LEVELS},
]
CLOSING = "Answer with one label.\n\n"
"""The end of a question, and of a message as the model's chat template writes it."""


def decide(server: Server, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}/v1/decisions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def logprobs_of(server: Server, prompt: str, labels: list[str]) -> list[float]:
    """Return the log-probability of each label after the prompt, from POST /v1/completions."""
    found = []
    for label in labels:
        ids = [
            httpx.post(f"{server.url}/tokenize", json={"prompt": text}, timeout=120).json()["tokens"]
            for text in (prompt, prompt + label)
        ]
        assert ids[1][:-1] == ids[0]
        body = {"prompt": ids[1], "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
        found.append(answer["choices"][0]["logprobs"]["token_logprobs"][-1])
    return found


def test_the_openai_packages_typed_client_gets_typed_answers(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        decision = client.decisions.create(model="fables", input=INPUT, questions=QUESTIONS)
        told: Any = [{"role": "user", "content": [{"type": "input_text", "text": INPUT}]}]
        of_messages = client.decisions.create(model="fables", input=told, questions=QUESTIONS)
        with pytest.raises(openai.NotFoundError, match="is served"):
            client.decisions.create(model="gpt-6-luna", input=INPUT, questions=QUESTIONS)
        image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}]
        with pytest.raises(openai.BadRequestError, match="does not accept images"):
            client.decisions.create(model="fables", input=image, questions=QUESTIONS)
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate"
    assert predicate.name == "sons"
    assert 0 < predicate.probability < 1
    assert choice.type == "choice"
    assert choice.name is None
    values = [each.value for each in choice.probabilities]
    assert [type(value) for value in values] == [str, bool, str]
    best = max(choice.probabilities, key=lambda each: each.probability)
    assert (choice.choice, type(choice.choice)) == (best.value, type(best.value))
    assert math.isclose(choice.confidence, (best.probability - 1 / 3) / (2 / 3))
    assert score.type == "score"
    assert [(each.label, each.value) for each in score.probabilities] == [("low", 0), ("middle", 1), ("high", 2)]
    assert math.isclose(score.score, sum(each.value * each.probability for each in score.probabilities))
    assert decision.model == "fables"
    assert decision.usage.output_tokens == 3
    assert of_messages.answers == decision.answers


def test_probabilities_are_those_of_completions(server: Server) -> None:
    predicate, choice, score = decide(server, input=INPUT, questions=QUESTIONS)["answers"]
    options = "A: a cat - it purrs\nB: true\nC: true"
    levels = "0: low\n1: middle - so so\n2: high"
    asked = {
        "predicate": ("The miller had sons.\nYes\nNo", ["Yes", "No"], [predicate, None]),
        "choice": (f"What purrs?\n{options}", ["A", "B", "C"], choice["probabilities"]),
        "score": (f"How long is it?\n{levels}", ["0", "1", "2"], score["probabilities"]),
    }
    for kind, (question, labels, told) in asked.items():
        logprobs = logprobs_of(server, f"{INPUT}\n\nQuestion: {question}\n{CLOSING}", labels)
        total = sum(map(math.exp, logprobs))
        for logprob, each in zip(logprobs, told, strict=True):
            assert each is None or abs(math.exp(logprob) / total - each["probability"]) <= 1e-6, kind


def test_an_answer_has_the_same_bits_alone_and_with_twenty_questions(server: Server) -> None:
    drawn = random.Random(5)
    words = INPUT.split()
    questions = [{**drawn.choice(QUESTIONS), "instructions": " ".join(drawn.sample(words, 12))} for _ in range(20)]
    together = decide(server, input=INPUT, questions=questions)["answers"]
    alone = [decide(server, input=INPUT, questions=[question])["answers"][0] for question in questions[::5]]
    assert together[::5] == alone


async def test_the_input_is_computed_once() -> None:
    """Count the positions that an engine of this test computes: other tests use the shared server meanwhile."""
    engine = InlineEngine(folder=PACKAGED, engine_info=replace(INFO, max_model_len=512))
    async with site(PACKAGED, engine, config=engine.model_config, max_model_len=512) as at:
        answer = await at.post("/v1/decisions", {"input": INPUT, "questions": QUESTIONS * 5})
        num_input = (await at.post("/tokenize", {"prompt": INPUT})).json()["count"]
    usage, computed = answer.json()["usage"], engine.engine.stats().computed_tokens_total
    read, cached = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    assert computed <= read - 14 * num_input, "to the token"
    assert cached >= 14 * (num_input // 32) * 32  # only whole blocks are reported


def test_systemone_answers_by_name_with_the_same_numbers(server: Server) -> None:
    state = {"story": "a cat", "words": [1, None]}
    questions = {
        "is it?": {"type": "noul", "instructions": "Is it a cat?"},
        "which": {"type": "choice", "instructions": "Which?", "criteria": {"cat": "it purrs", "dog": None}},
        "how much": {"type": "score", "instructions": "How much?", "criteria": ["low", "high"]},
    }
    body = {"state": state, "questions": questions}
    answer = httpx.post(f"{server.url}/v1/systemone", json=body, timeout=120).json()
    asked = [
        {"type": "predicate", "instructions": "Is it a cat?"},
        {
            "type": "choice",
            "instructions": "Which?",
            "choices": [{"value": "cat", "description": "it purrs"}, {"value": "dog"}],
        },
        {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    text = '{"story":"a cat","words":[1,null]}'
    predicate, choice, score = decide(server, input=text, questions=asked)["answers"]
    noul, chosen, rated = answer["answers"].values()
    assert noul == {"type": "noul", "noul": predicate["probability"]}
    assert chosen == {
        "type": "choice",
        "choice": choice["choice"],
        "confidence": choice["confidence"],
        "probabilities": {each["value"]: each["probability"] for each in choice["probabilities"]},
    }
    assert (rated["score"], rated["legend"]) == (score["score"], {"0": "low", "1": "high"})
    assert rated["probabilities"] == {str(each["value"]): each["probability"] for each in score["probabilities"]}
    assert answer["model"] == "fables"
    assert set(answer["usage"]) == {"input_tokens", "output_tokens", "cached_tokens"}
    assert all(0 < each["label_mass"] <= 1 for each in answer["diagnostics"].values())
