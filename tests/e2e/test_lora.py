"""LoRA adapters over HTTP: chosen by the name of the model, mixed in one batch, loaded and unloaded while the server
runs. Numbers are peft's.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from lightwell.server.config.auth.keys import key_entry
from lightwell_client import BadRequest, Client, NotFound
from tests import tiny
from tests.support.processes import Server, serve
from tests.support.wire import samples
from tests.tiny.adapters import make_adapter

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks

NUM_TOKENS = 6
PROMPT = torch.randint(5, tiny.VOCAB_SIZE - 20, (29,)).tolist()
ADMIN_KEY, CLIENT_KEY = "admin-key-0123456789", "client-key-0123456789"
ADMIN, CLIENT = ({"Authorization": f"Bearer {key}"} for key in (ADMIN_KEY, CLIENT_KEY))
BASE, FIRST, SECOND, RUNTIME = "tiny", "first", "second", "runtime"
Networks = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def networks(root: Path) -> Networks:
    """Return the model and peft's models of three adapters; the adapters' folders are in `root`."""
    folder = tiny.make_variant("llama-gqa", root / "model")
    adapted = {name: make_adapter(folder, root / name, i) for i, name in enumerate((FIRST, SECOND, RUNTIME))}
    return {BASE: tiny.theirs(folder, torch.float32), **adapted}


@pytest.fixture(scope="module")
def server(root: Path, networks: Networks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(key_entry("admin", ADMIN_KEY, is_admin=True) + key_entry("client", CLIENT_KEY, is_admin=False))
    flags = ["--served-model-name", BASE, "--devices", "2", "--block-size", "8", "--api-key-file", str(keys)]
    flags += ["--lora", f"{FIRST}={root / FIRST}", "--lora", f"{SECOND}={root / SECOND}"]
    flags += ["--lora-root", str(root), "--max-loras", "3", "--max-lora-rank", "4"]
    with serve([str(root / "model"), *flags]) as running:
        yield running


@torch.no_grad()
def expected(network: Any) -> list[float]:
    ids, found = torch.tensor([PROMPT]), []
    for _ in range(NUM_TOKENS):
        logprobs = network(input_ids=ids).logits[0, -1].log_softmax(-1)
        found.append(float(logprobs.max()))
        ids = torch.cat((ids, logprobs.argmax()[None, None]), 1)
    return found


async def completions(server: Server, names: list[str]) -> list[dict[str, Any]]:
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=CLIENT) as client:
        asked = [client.post("/v1/completions", json={**body, "model": name}) for name in names]
        return [answer.raise_for_status().json() for answer in await asyncio.gather(*asked)]


def change(server: Server, what: str, body: dict[str, str], headers: dict[str, str] = ADMIN) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, headers=headers, timeout=60)


async def check(server: Server, networks: Networks, names: list[str]) -> None:
    wanted = {name: expected(networks[name]) for name in names}
    for _ in range(2):  # the second time the prompt's blocks are in the prefix cache
        for name, answer in zip(4 * names, await completions(server, 4 * names), strict=True):
            assert answer["model"] == name
            np.testing.assert_allclose(answer["choices"][0]["logprobs"]["token_logprobs"], wanted[name], atol=1e-4)


async def test_each_request_gets_the_adapter_that_it_names(server: Server, networks: Networks) -> None:
    await check(server, networks, [BASE, FIRST, SECOND])


def test_a_trace_shows_the_network_with_the_adapter(server: Server, networks: Networks) -> None:
    body = {"model": FIRST, "input": PROMPT, "points": ["blocks.1.hook_resid_post", "blocks.1.attn.hook_result"]}
    answer = httpx.post(f"{server.url}/v1/trace", json=body, headers=CLIENT, timeout=60).raise_for_status().json()
    points = answer["data"][0]["points"]
    with torch.no_grad():
        network = networks[FIRST].base_model.model.model
        outputs: list[torch.Tensor] = []
        hooks = [network.layers[1].self_attn.register_forward_hook(lambda _, __, out: outputs.append(out[0][0]))]
        hooks.append(network.layers[1].register_forward_hook(lambda _, __, out: outputs.append(out[0])))
        network(torch.tensor([PROMPT]))
        for hook in hooks:
            hook.remove()
    np.testing.assert_allclose(np.array(points["blocks.1.hook_resid_post"]["data"]), outputs[1], atol=1e-3)
    heads = np.array(points["blocks.1.attn.hook_result"]["data"]).sum(1)
    np.testing.assert_allclose(heads, outputs[0], atol=1e-3)


async def test_adapters_come_and_go_while_the_server_runs(server: Server, networks: Networks) -> None:
    loaded = change(server, "load", {"lora_name": RUNTIME, "lora_path": RUNTIME})
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'runtime' added successfully.")
    models = httpx.get(f"{server.url}/v1/models", headers=CLIENT, timeout=60).json()["data"]
    parents = {each["id"]: each["parent"] for each in models}
    assert parents == {BASE: None, FIRST: BASE, SECOND: BASE, RUNTIME: BASE}
    await check(server, networks, [RUNTIME, FIRST, BASE])
    metrics = samples(httpx.get(f"{server.url}/metrics", timeout=60).text)
    assert metrics['lightwell_lora_adapter_info{lora_name="runtime"}'] == 1
    assert metrics['lightwell_lora_requests_total{lora_name="runtime"}'] == 8
    too_many = change(server, "load", {"lora_name": "another", "lora_path": RUNTIME})
    assert (too_many.status_code, too_many.json()["error"]["code"]) == (400, "too_many_loras")
    assert change(server, "unload", {"lora_name": RUNTIME}).status_code == 200
    gone = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": RUNTIME, "prompt": PROMPT, "max_tokens": 1},
        headers=CLIENT,
        timeout=60,
    )
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    # The same name with other weights: entries of the prefix cache for the first weights are not used.
    assert change(server, "load", {"lora_name": RUNTIME, "lora_path": SECOND}).status_code == 200
    await check(server, {**networks, RUNTIME: networks[SECOND]}, [RUNTIME])
    assert change(server, "unload", {"lora_name": RUNTIME}).status_code == 200


def test_the_python_client_loads_and_unloads(server: Server) -> None:
    with Client(server.url, api_key=ADMIN_KEY) as client:
        client.load_lora(RUNTIME, RUNTIME)
        assert {each.id: each.parent for each in client.models()}[RUNTIME] == BASE
        assert client.generate(PROMPT, model=RUNTIME, max_tokens=2).model == RUNTIME
        with pytest.raises(BadRequest, match="already loaded"):
            client.load_lora(RUNTIME, RUNTIME)
        client.unload_lora(RUNTIME)
        with pytest.raises(NotFound, match="does not exist here"):
            client.generate(PROMPT, model=RUNTIME, max_tokens=2)


def test_what_cannot_be_loaded_is_refused_in_one_line(server: Server, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "mixed").mkdir()
    (root / "mixed" / "adapter_config.json").symlink_to(tmp_path / "elsewhere")
    cases = [
        ({"lora_name": "x", "lora_path": "../adapters0/first"}, 400, "lora_path_outside"),
        ({"lora_name": "x", "lora_path": "/etc"}, 400, "lora_path_outside"),
        ({"lora_name": "x", "lora_path": "link"}, 400, "lora_path_outside"),
        ({"lora_name": "x", "lora_path": "mixed"}, 400, "lora_path_outside"),
        ({"lora_name": "x", "lora_path": "nothing"}, 404, "lora_not_found"),
        ({"lora_name": "x", "lora_path": "model"}, 400, "lora_invalid"),
        ({"lora_name": FIRST, "lora_path": RUNTIME}, 400, "lora_name_in_use"),
        ({"lora_name": BASE, "lora_path": RUNTIME}, 400, "invalid_value"),
    ]
    for body, status, code in cases:
        answer = change(server, "load", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert change(server, "unload", {"lora_name": "x"}).status_code == 404
    assert change(server, "load", {"lora_name": "x", "lora_path": RUNTIME}, CLIENT).status_code == 403
