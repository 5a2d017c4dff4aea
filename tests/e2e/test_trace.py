"""Traces and interventions of the default model through the real server: formats, the socket, many at once."""

import io
import json
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


def test_patterns_mix_values_and_sublayers_add_up(http: httpx.Client) -> None:
    names = ["attn.hook_pattern", "v", "z", "hook_resid_pre", "hook_attn_out", "hook_mlp_out", "hook_resid_post"]
    found = {name.removeprefix("0/"): value for name, value in tensors(http, input=TEXT, points=names).items()}
    shape = http.get("/v1/capabilities").json()
    per_key_head = shape["num_heads"] // shape["num_kv_heads"]
    for layer in range(shape["num_layers"]):
        at = {name: found[f"blocks.{layer}.{name}"] for name in ("hook_resid_pre", "hook_attn_out", "hook_mlp_out")}
        assert np.allclose(sum(at.values()), found[f"blocks.{layer}.hook_resid_post"], rtol=1e-4, atol=1e-4)
        values = np.repeat(found[f"blocks.{layer}.attn.hook_v"], per_key_head, axis=1)
        mixed = np.einsum("hqk,khd->qhd", found[f"blocks.{layer}.attn.hook_pattern"], values)
        assert np.allclose(mixed, found[f"blocks.{layer}.attn.hook_z"], rtol=1e-4, atol=1e-4)


def test_every_format_holds_the_same_numbers(http: httpx.Client) -> None:
    body: dict[str, Any] = {
        "input": TEXT,
        "points": ["blocks.3.attn.hook_rot_q"],
        "heads": [5, 0],
        "positions": [-1, 2],
    }
    (exact,) = tensors(http, **body).values()
    npy = http.post("/v1/trace", json=body, headers={"accept": "application/x-npy"})
    assert np.array_equal(np.load(io.BytesIO(npy.content)), exact)
    lines = http.post("/v1/trace", json=body, headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert np.array_equal(np.array(json.loads(lines[1])["data"], np.float32), exact)
    listed = http.post("/v1/trace", json=body).json()["data"][0]["points"]["blocks.3.attn.hook_rot_q"]
    assert np.array_equal(np.array(listed["data"], np.float32), exact)
    half = tensors(http, **body, dtype="float16")["0/blocks.3.attn.hook_rot_q"]
    assert np.array_equal(half, exact.astype(np.float16))


def test_the_traced_logits_choose_the_tokens_that_are_generated(http: httpx.Client) -> None:
    body = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    generated = http.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
    (logits,) = tensors(http, input=TEXT, completion=generated, points=["logits"]).values()
    assert logits[-9:-1].argmax(axis=1).tolist() == generated


def test_a_patched_prompt_goes_on_as_its_source_and_its_neighbours_go_on_as_before(http: httpx.Client) -> None:
    """Check that with the source's hidden states in place of the prompt's own the next token is the source's; 7
    others decode at the same time.
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
    value = np.random.default_rng().integers(-99, 99, 256).astype(np.float32)  # which bfloat16 can hold
    change = {"point": "blocks.2.hook_resid_mid", "positions": [1, 4], "op": "patch", "value": value.tolist()}
    asked: dict[str, Any] = {"input": TEXT, "points": ["blocks.2.hook_resid_mid"]}
    (clean,), (changed,) = tensors(http, **asked).values(), tensors(http, **asked, interventions=[change]).values()
    expected = clean.copy()
    expected[[1, 4]] = value
    assert np.array_equal(changed, expected)


def test_an_intervened_prompt_leaves_no_trace_in_the_prefix_cache(http: httpx.Client) -> None:
    prompt = TEXT * 6  # several blocks of the cache
    before = greedy(http, prompt)
    change = {"point": "hook_resid_pre", "layer": 0, "op": "zero"}
    assert greedy(http, prompt, interventions=[change]) != before
    assert greedy(http, prompt) == before


def test_a_trace_over_the_limits_is_refused_with_what_fits(http: httpx.Client) -> None:
    body = {"input": [[1] * 500] * 40, "points": ["attn.hook_pattern", "attn.hook_result"]}
    answer = http.post("/v1/trace", json=body)
    assert answer.status_code == 413
    assert "Any of these fits" in answer.json()["error"]["message"]
