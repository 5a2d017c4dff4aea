"""Routes on models with layers of several kinds, with shared keys, or with several residual streams."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.server.dialects.conftest import every_family
from tests.server.dialects.routes import refuses
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site
from tests.tiny import make_variant

NAMES = ("lfm2", "qwen3_5")


def text(family: Site) -> list[int]:
    return [random.randrange(family.model.config.vocab_size) for _ in range(9)]


def layers_of(family: Site) -> tuple[list[int], int]:
    """Return the layers that have attention, and one that has none."""
    config = family.model.config
    return list(config.attention_layers), random.choice(
        sorted(set(range(config.num_layers)) - {*config.attention_layers})
    )


@every_family(*NAMES)
@pytest.mark.parametrize("route", ["attention", "heads", "contributions"])
async def test_all_layers_are_those_with_attention(family: Site, route: str) -> None:
    attending, without = layers_of(family)
    answer = await family.post(f"/v1/{route}", {"input": text(family)})
    assert answer.json()["data"][0]["layers"] == attending
    error = await family.error(f"/v1/{route}", {"input": text(family), "layers": [attending[0], without]}, 400)
    assert (error["param"], error["code"]) == ("layers", "no_attention")
    assert f"layer {without} has no attention" in error["message"]
    assert f"accepted are {', '.join(map(str, attending))}." in error["message"]


@every_family(*NAMES)
@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("attention", {"pairs": "pair"}, "pairs"),
        ("explain", {"layer": "layer", "head": 0}, "layer"),
        ("completions", {"attention": {"layers": "layer"}}, "attention.layers"),
        ("trace", {"points": ["attn.hook_pattern"], "layers": "layer"}, "points"),
        ("trace", {"points": ["blocks.{layer}.attn.hook_q"]}, "points"),
    ],
)
async def test_a_layer_without_attention_is_named(family: Site, route: str, fields: dict[str, Any], param: str) -> None:
    attending, without = layers_of(family)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        named = {"layer": without, "pair": [[attending[0], 0], [without, 0]]}
        return named.get(value, value.format(layer=without)) if isinstance(value, str) else value

    reads = {"prompt": text(family)} if route == "completions" else {"input": text(family)}
    await refuses(family, f"/v1/{route}", {**reads, **filled(fields)}, ", ".join(map(str, attending)), param=param)


@every_family(*NAMES)
async def test_weights_of_heads_are_those_of_layers_that_have_some(family: Site) -> None:
    attending, without = layers_of(family)
    circuits = await family.post("/v1/circuits", {})
    assert circuits.json()["data"][0]["layers"] == attending
    assert (await family.error("/v1/circuits", {"layers": without}, 400))["param"] == "layers"
    geometry = f"/v1/models/{family.model.id}/geometry?matrix=W_Q"
    assert (await family.http.get(f"{geometry}&layer={attending[0]}")).status_code == 200
    refused = await family.http.get(f"{geometry}&layer={without}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "matrix")
    assert f"layers {', '.join(map(str, attending))} have it" in refused.json()["error"]["message"]


@every_family(*NAMES)
async def test_capabilities_say_which_layers_have_attention(family: Site) -> None:
    attending, without = layers_of(family)
    told = (await family.http.get("/v1/capabilities")).json()
    assert told["attention_layers"] == told["stacks"]["decoder"]["attention_layers"] == attending
    assert without in told["stacks"]["decoder"]["recurrence"]["layers"]
    assert told["prefix_caching"] is False
    assert not told["routes"]["/v1/rollout"]["works"]
    patterns = next(point for point in told["points"] if point["short"] == "attn.hook_pattern")
    assert patterns["layers"] == attending


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
            "interventions[0].layer: layer 4 uses attn.hook_k of layer 1; change it there.",
        ),
        (
            {"point": "attn.hook_z", "layer": "all", "op": "zero"},
            "interventions[0].layer: layers 0 and 2 have attn.hook_z of different sizes; layers of one size are "
            "accepted.",
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
    assert "layers with heads of one size are accepted, such as [0, 1, 3, 4]" in answer.text
    answer = await gemma.post("/v1/circuits", {"layers": [2, 5], "heads": [0, 3]})
    assert answer.json()["data"][0]["kv_heads"] == [0, 1]


async def test_what_several_streams_do_not_say_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = InlineEngine(folder=make_variant("gemma3n", tmp_path_factory.mktemp("gemma3n")))
    site = build_site(tmp_path_factory.mktemp("tokenizer"), engine, config=engine.model_config)
    for route, more in (("/v1/lens", {}), ("/v1/contributions", {"target": 5})):
        answer = await site.post(route, {"input": [5, 6, 7], **more})
        assert answer.status_code == 400
        assert "Gemma3nForCausalLM computes its logits from 4 residual streams" in answer.text
    assert (await site.post("/v1/contributions", {"input": [5, 6, 7]})).status_code == 200
    assert (await site.post("/v1/next", {"input": [5, 6, 7]})).status_code == 200
    told = (await site.http.get("/v1/capabilities")).json()
    assert (told["routes"]["/v1/lens"]["works"], told["stacks"]["decoder"]["altup"]["num_streams"]) == (False, 4)
