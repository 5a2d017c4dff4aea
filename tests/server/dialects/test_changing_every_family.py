"""Traces and interventions over HTTP on a small random checkpoint of every family, to check the place of each point.

A value written at a point must be read there, no earlier value may change, and later values must follow from it.
"""

import base64
import math
import random
import re
from typing import Any

import numpy as np

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, points_of, stack_config, stacks, why_absent
from lightwell.model.hooks.points import Point
from tests.server.dialects.conftest import every_family
from tests.server.dialects.test_looking_at_every_family import LENGTH, ids, reading
from tests.server.serving import Site
from tests.tiny import DECODERS, ENCODER_DECODERS, UNLIKE

GENERATING = tuple(name for name in (*DECODERS, *ENCODER_DECODERS) if name in UNLIKE)
EVERY = UNLIKE


async def trace(family: Site, names: list[str], **body: Any) -> dict[str, Any]:
    """Return name -> array, as the route gives them."""
    answer = await family.post("/v1/trace", {"points": names, "encoding_format": "base64", **body})
    assert answer.status_code == 200, answer.text
    return {
        name: np.frombuffer(base64.b64decode(point["data"]), np.float32).reshape(point["shape"])
        for name, point in answer.json()["data"][0]["points"].items()
    }


def places(config: ModelConfig) -> list[tuple[str, Point]]:
    """Return the full names of all points of all stacks, each in a random layer that has the point."""
    found = []
    for stack in stacks(config):
        for point in points_of(config, stack):
            layers = range(stack_config(config, stack).num_layers)
            has = [layer for layer in layers if why_absent(config, stack, point, layer) is None]
            found.append((full_name(config, stack, point.name, random.choice(has) if point.in_block else None), point))
    return found


@every_family(*EVERY)
async def test_every_point_there_is_has_numbers_and_a_selection_is_its_slice(family: Site) -> None:
    body, named = reading(family.model.config), places(family.model.config)
    whole = await trace(family, [name for name, _ in named], **body)
    row = random.randrange(LENGTH - 4)
    part = await trace(family, [name for name, _ in named], positions=[row, 0] if row else [0], **body)
    for name, point in named:
        axis = next(i for i, of in enumerate(point.axes) if of in ("position", "query"))
        assert np.array_equal(part[name], whole[name].take([row, 0] if row else [0], axis)), name
        seen = whole[name][np.isfinite(whole[name])]
        assert seen.size == whole[name].size or point.name.endswith("hook_attn_scores"), name
        assert point.name == "hook_token_type_embed" or seen.std() > 0, name


@every_family(*EVERY)
async def test_what_is_written_at_a_point_is_read_there_and_nowhere_else(family: Site) -> None:
    body, named = reading(family.model.config), places(family.model.config)
    clean = await trace(family, [name for name, _ in named], **body)
    for name, point in named:
        layer = re.search(r"blocks\.(\d+)\.attn\.hook_[kv]$", name)
        is_shared = layer is not None and family.model.config.kv_layer(int(layer[1])) != int(layer[1])
        if not point.changeable or "key" in point.axes or is_shared:
            continue
        before = clean[name]
        row = random.randrange(len(before))
        heads = "head" in point.axes or "kv_head" in point.axes
        head = random.randrange(before.shape[1]) if heads else "all"
        value = np.random.default_rng().normal(size=before.shape[-1]).astype(np.float32)
        change = {"point": name, "op": "patch", "positions": row, "head": head, "value": value.tolist()}
        after = (await trace(family, [name], **body, interventions=[change]))[name]
        expected = before.copy()
        expected[(row, head) if heads else row] = value
        assert np.array_equal(after, expected), name


async def exponential_of_sink(family: Site, body: dict[str, Any], name: str, head: int) -> float:
    """Return exp(sink) of a head at temperature 1, or 0 without a sink. `name` is the full name of its pattern."""
    if not family.model.config.attention_sinks:
        return 0.0
    answer = await family.post("/v1/explain", {**body, "layer": int(name.split(".")[1]), "head": head})
    return math.exp(answer.json()["data"][0]["softmax"]["sink"])


@every_family(*EVERY)
async def test_patterns_can_be_set_scaled_and_softened(family: Site) -> None:
    body = reading(family.model.config)
    for name, point in places(family.model.config):
        if not point.name.endswith("hook_pattern"):
            continue
        scores_name, z_name = (name.replace("hook_pattern", f"hook_{other}") for other in ("attn_scores", "z"))
        clean = await trace(family, [name, scores_name, z_name], **body)
        row, head = random.randrange(clean[name].shape[1]), random.randrange(clean[name].shape[0])
        where = {"positions": row, "head": head}
        scores = clean[scores_name][head, row]
        seen, sink = np.isfinite(scores), await exponential_of_sink(family, body, name, head)

        hot = await trace(
            family, [name], **body, interventions=[{"point": scores_name, "op": "temperature", "value": 0, **where}]
        )
        expected = clean[name].copy()
        expected[head, row] = (np.arange(len(seen)) == scores.argmax()) / (1 + sink)
        np.testing.assert_allclose(hot[name], expected, rtol=1e-6 if sink else 0, err_msg=name)

        softened = await trace(
            family, [name], **body, interventions=[{"point": scores_name, "op": "temperature", "value": 2.5, **where}]
        )
        powers = np.exp(scores / 2.5)
        assert np.allclose(softened[name][head, row], powers / (powers.sum() + sink), atol=1e-6), name

        halved = await trace(
            family, [name, z_name], **body, interventions=[{"point": name, "op": "scale", "value": 0.5, **where}]
        )
        assert np.array_equal(halved[name][head, row], clean[name][head, row] * np.float32(0.5)), name
        assert np.allclose(halved[z_name][row, head], clean[z_name][row, head] / 2, rtol=1e-5, atol=1e-6), name

        flat = (seen / seen.sum()).astype(np.float32)
        patched = await trace(
            family, [name, scores_name], **body,
            interventions=[{"point": name, "op": "patch", "value": flat.tolist(), **where}],
        )  # fmt: skip
        assert np.array_equal(patched[name][head, row], flat), name
        assert np.array_equal(patched[scores_name], clean[scores_name]), name


# In Gemma 4 E2B and Gemma 3n, tokens reach later layers also outside the residual stream.
@every_family(*(name for name in EVERY if name not in ("gemma4-e2b", "gemma3n")))
async def test_with_the_whole_stream_of_another_input_the_rest_of_the_pass_is_that_inputs(family: Site) -> None:
    """Patch activations at their strongest: from the patched block on, every bit is the source's."""
    config = family.model.config
    stack = stacks(config)[-1]
    after = full_name(config, stack, "hook_resid_post", config.num_layers - 1)
    names = [after, full_name(config, stack, "logits", None)] if config.has_head else [after]
    body, other = reading(config), reading(config)
    other["input"] = body["input"] if stack == "decoder" and config.kind == "encoder-decoder" else other["input"]
    change = {"point": full_name(config, stack, "hook_resid_pre", 0), "op": "patch", "from": other}
    patched = await trace(family, names, **body, interventions=[change])
    expected = await trace(family, names, **other)
    for name in names:
        assert np.array_equal(patched[name], expected[name]), name


@every_family(*GENERATING)
async def test_generated_tokens_are_changed_too(family: Site) -> None:
    config = family.model.config
    wanted = random.randrange(3, config.vocab_size)
    steered = [0.0] * config.vocab_size
    steered[wanted] = 1e4
    body = {"prompt": ids(config), "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = await family.post(
        "/v1/completions", {**body, "interventions": [{"point": "logits", "op": "add", "value": steered}]}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == [wanted] * 4


@every_family(*EVERY)
async def test_the_attention_route_shows_the_patterns_of_the_trace(family: Site) -> None:
    config = family.model.config
    body = reading(config)
    change = {"point": full_name(config, stacks(config)[-1], "hook_resid_pre", 0), "op": "scale", "value": 0.5}
    for part in ("encoder", "decoder", "cross") if config.kind == "encoder-decoder" else (config.kind,):
        stack = "encoder" if part == "encoder" else stacks(config)[-1]
        point = "cross_attn.hook_pattern" if part == "cross" else "attn.hook_pattern"
        names = [full_name(config, stack, point, i) for i in stack_config(config, stack).attention_layers]
        for interventions in ([], [change]):
            traced = await trace(family, names, **body, interventions=interventions)
            asked = {**body, "part": part, "encoding_format": "base64", "interventions": interventions}
            (entry,) = (await family.post("/v1/attention", asked)).json()["data"]
            assert np.array_equal(decoded(entry), np.stack([traced[name] for name in names])), part


@every_family(*GENERATING)
async def test_rows_that_come_with_generated_tokens_are_those_of_a_trace_of_the_whole(family: Site) -> None:
    config, prompt = family.model.config, ids(family.model.config)
    for part in ("decoder", "cross") if config.cross_attention else ("decoder",):
        rows = {"part": part, "encoding_format": "base64", "prompt": True}
        body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        (choice,) = (await family.post("/v1/completions", {**body, "attention": rows})).json()["choices"]
        asked = {"input": prompt, "completion": choice["token_ids"], "part": part, "encoding_format": "base64"}
        (entry,) = (await family.post("/v1/attention", asked)).json()["data"]
        whole, tokens, first = (decoded(found) for found in (entry, choice["attention"], choice["attention"]["prompt"]))
        num_prompt = first.shape[-2]
        keys = slice(None) if part == "cross" else slice(tokens.shape[-1])
        assert np.array_equal(tokens, whole[..., num_prompt - 1 : num_prompt + 4, keys]), part
        assert np.array_equal(first, whole[..., :num_prompt, : first.shape[-1]]), part


def decoded(entry: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(entry["attention"]), np.float32).reshape(entry["shape"])
