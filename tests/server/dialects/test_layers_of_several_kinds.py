"""Routes on a model with heads of several sizes and layers that share keys and values, and on a model with several
residual streams.
"""

from pathlib import Path

import pytest

from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site
from tests.tiny import make_variant


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Site:
    engine = InlineEngine(folder=make_variant("gemma4-e2b", tmp_path_factory.mktemp("gemma4-e2b")))
    tokenizer: Path = tmp_path_factory.mktemp("tokenizer")
    return build_site(tokenizer, engine, config=engine.model_config)


async def test_the_capabilities_tell_the_sizes_of_each_layer(gemma: Site) -> None:
    found = (await gemma.http.get("/v1/capabilities")).json()
    layers = found["stacks"]["decoder"]["layer_sizes"]
    assert [each["kv_layer"] for each in layers] == [0, 1, 2, 1, 1, 2]
    assert [each["head_dim"] for each in layers] == [16, 16, 24] * 2
    assert [each["intermediate_size"] for each in layers] == [100] * 3 + [200] * 3
    shapes = {point["name"]: point["shape"] for point in found["points"]}
    assert shapes["blocks.{layer}.attn.hook_z"] == [None, 4, None]
    assert shapes["blocks.{layer}.hook_per_layer_input"] == [None, 12]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"point": "attn.hook_k", "layer": 4, "op": "zero"},
            "interventions[0].layer: layer 4 reads layer 1's attn.hook_k, which can be changed there.",
        ),
        (
            {"point": "attn.hook_z", "layer": "all", "op": "zero"},
            "interventions[0].layer: layers 0 and 2 have attn.hook_z of other sizes; layers of one size are accepted.",
        ),
    ],
)
async def test_a_change_that_layers_cannot_take_is_refused(gemma: Site, change: dict[str, str], message: str) -> None:
    answer = await gemma.post("/v1/trace", {"input": [5, 6, 7], "points": ["logits"], "interventions": [change]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


async def test_a_change_of_keys_is_seen_in_the_layers_that_read_them(gemma: Site) -> None:
    change = {"point": "attn.hook_k", "layer": 1, "op": "zero"}
    body = {"input": [5, 6, 7, 8], "points": ["attn.hook_k"], "layers": [1, 3, 5], "interventions": [change]}
    points = (await gemma.post("/v1/trace", body)).json()["data"][0]["points"]
    assert [bool(str(point["data"]).strip("[]0., ")) for point in points.values()] == [False, False, True]


async def test_circuits_are_of_layers_of_one_kind(gemma: Site) -> None:
    answer = await gemma.post("/v1/circuits", {"layers": "all"})
    assert answer.status_code == 400
    assert "their heads are of different sizes; layers of one kind are accepted, such as [0, 1, 3, 4]" in answer.text
    answer = await gemma.post("/v1/circuits", {"layers": [2, 5], "heads": [0, 3]})
    assert answer.json()["data"][0]["kv_heads"] == [0, 1]


async def test_what_several_streams_do_not_say_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = InlineEngine(folder=make_variant("gemma3n", tmp_path_factory.mktemp("gemma3n")))
    site = build_site(tmp_path_factory.mktemp("tokenizer"), engine, config=engine.model_config)
    for route, more in (("/v1/lens", {}), ("/v1/contributions", {"target": 5})):
        answer = await site.post(route, {"input": [5, 6, 7], **more})
        assert answer.status_code == 400
        assert "Gemma3nForCausalLM makes its logits of 4 residual streams" in answer.text
    assert (await site.post("/v1/contributions", {"input": [5, 6, 7]})).status_code == 200
    assert (await site.post("/v1/next", {"input": [5, 6, 7]})).status_code == 200
    told = (await site.http.get("/v1/capabilities")).json()
    assert (told["routes"]["/v1/lens"]["works"], told["stacks"]["decoder"]["altup"]["num_streams"]) == (False, 4)
