"""Routes of attention if only some layers have attention: "all" selects these layers; other layers are rejected."""

import random
from typing import Any

import pytest

from tests.server.dialects.conftest import every_family
from tests.server.dialects.routes import refuses
from tests.server.serving import Site

NAMES = ("lfm2", "qwen3_5")


def text(family: Site) -> list[int]:
    return [random.randrange(family.context.config.vocab_size) for _ in range(9)]


def layers_of(family: Site) -> tuple[list[int], int]:
    """Return the layers that have attention, and one that has none."""
    config = family.context.config
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
    geometry = f"/v1/models/{family.context.model_id}/geometry?matrix=W_Q"
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
    if told["stacks"]["decoder"]["recurrence"]["kind"] == "gated delta net":  # torch computes a part of it
        assert told["same_bits_across"] is None
    assert not told["routes"]["/v1/rollout"]["works"]
    patterns = next(point for point in told["points"] if point["short"] == "attn.hook_pattern")
    assert patterns["layers"] == attending
