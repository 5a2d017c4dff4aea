"""Inspection of the default model through the real server: the socket, many requests at once, a trained head."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from tests.support.processes import Server

TEXT = "Once upon a time there was a king who had three"
OTHER = "The fox said to the crow that he would gladly"


@pytest.fixture(scope="module")
def http(server: Server) -> Any:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


def tensors(http: httpx.Client, path: str = "/v1/trace", **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body, headers={"accept": "application/vnd.safetensors"})
    assert answer.status_code == 200, answer.text
    return dict(load_safetensors(answer.content))


def greedy(http: httpx.Client, prompt: str, **body: Any) -> str:
    answer = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 12, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_the_traced_logits_choose_the_tokens_that_are_generated(http: httpx.Client) -> None:
    body = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    generated = http.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
    (logits,) = tensors(http, input=TEXT, completion=generated, points=["logits"]).values()
    assert logits[-9:-1].argmax(axis=1).tolist() == generated


def test_a_patched_prompt_goes_on_as_its_source_and_its_neighbours_go_on_as_before(http: httpx.Client) -> None:
    """Check that the next token is the source's if the source's hidden states replace the prompt's own; 7 others decode
    at the same time.
    """
    prompts = [TEXT[: 12 + 4 * i] for i in range(7)]
    alone = [greedy(http, prompt) for prompt in prompts]
    patch = {"point": "hook_resid_post", "layer": -1, "positions": -1, "op": "patch", "from": {"input": OTHER}}
    with ThreadPoolExecutor(8) as pool:
        patched = pool.submit(greedy, http, TEXT, interventions=[patch], max_tokens=1)
        among = list(pool.map(lambda prompt: greedy(http, prompt), prompts))
    assert patched.result() == greedy(http, OTHER, max_tokens=1)
    assert among == alone


def test_arrays_cross_the_socket_as_they_are(http: httpx.Client) -> None:
    value = np.random.default_rng().integers(-99, 99, 256).astype(np.float32)  # exact in bfloat16
    change = {"point": "blocks.2.hook_resid_mid", "positions": [1, 4], "op": "patch", "value": value.tolist()}
    asked: dict[str, Any] = {"input": TEXT, "points": ["blocks.2.hook_resid_mid"]}
    (clean,), (changed,) = tensors(http, **asked).values(), tensors(http, **asked, interventions=[change]).values()
    expected = clean.copy()
    expected[[1, 4]] = value
    assert np.array_equal(changed, expected)


def test_a_trained_model_has_a_previous_token_head(http: httpx.Client) -> None:
    """Check that a head scores high on a story and on noise alike."""
    for body in ({"input": TEXT}, {}):
        (entry,) = http.post("/v1/heads", json=body).json()["data"]
        assert entry["strongest"]["previous_token"][0]["score"] > 0.4
