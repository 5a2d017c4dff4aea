"""A trace's points by every name that a request takes; the server's own plan decides which point a name means."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import points_of, stack_config, stacks, version_4_names
from lightwell.server.generation.interventions.trace_plan import choose_points
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.inspect.trace import TraceRequest
from lightwell_client import TraceResult
from lightwell_client._trace import TRACE
from lightwell_client._wire import Answer
from tests.client.answers import as_json, fields_of
from tests.server.serving import tiny_config

GATED = replace(tiny_config(), gated_mlp=True)
ENCODER = replace(tiny_config(), kind="encoder", has_head=False, causal=False, final_norm=False, norm_placement="post")
CONFIGS = {
    "decoder": tiny_config(),
    "gated": GATED,
    "sandwich": replace(GATED, norm_placement="sandwich"),
    "output": replace(GATED, norm_placement="output"),
    "encoder": ENCODER,
    "both": replace(tiny_config(), kind="encoder-decoder", cross_attention=True, encoder=ENCODER),
}


def meant(config: ModelConfig, names: list[str], layers: Any) -> list[str]:
    """Return the full names of the points in the server's answer, in its order."""
    request = TraceRequest.model_validate({"input": "x", "points": names, "layers": layers})
    return [one.name for one in choose_points(request, config)]


def traced(config: ModelConfig, names: list[str], layers: Any = "all") -> TraceResult:
    """Return an answer with an array for each point that holds the point's index."""
    call = TRACE.call(None, {"layers": layers}, input="x", points=names)
    answered = enumerate(meant(config, names, layers))
    body = as_json("points", (fields_of(0), {full: (("d_model",), np.array([i], "f4")) for i, full in answered})).body
    body["stacks"] = {stack: {"num_layers": stack_config(config, stack).num_layers} for stack in stacks(config)}
    [result] = call.parse(Answer(200, {"content-type": "application/json"}, json.dumps(body).encode()))
    return result


def spellings(config: ModelConfig) -> Iterator[str]:
    """Return each point as TransformerLens's users write it, in each layer, in all, and counted from the last."""
    for stack in stacks(config):
        shorts = {point.name: [point.name, point.name.replace("hook_", "")] for point in points_of(config, stack)}
        for name, written in shorts.items():
            if name.startswith("attn."):
                written += [each.removeprefix("attn.") for each in written]
        for written_4, name in version_4_names(config, stack).items():
            shorts.get(name, []).append(written_4)
        in_block = {point.name for point in points_of(config, stack) if point.in_block}
        for prefix in {f"{stack}.", "" if stack == stacks(config)[-1] else f"{stack}."}:
            for name, written in shorts.items():
                for short in written:
                    yield prefix + short
                    if name in in_block:
                        yield from (f"{prefix}blocks.1.{short}", f"{prefix}{short}.1", f"{prefix}blocks.-1.{short}")


def check(config: ModelConfig, result: TraceResult, name: str, layers: Any) -> None:
    """Assert that a name has the same meaning in the result as in the request."""
    try:
        full_names = meant(config, [name], layers)
    except BadRequest:  # without other names it takes no layers
        full_names = meant(config, [name], "all")
    if len(full_names) == 1:
        assert name in result
        assert (result[name] == result.arrays[full_names[0]].array).all()
    for full in full_names:
        layer = int(full.split("blocks.")[1].split(".")[0]) if "blocks." in full else None
        assert result.point(name, layer) is result.arrays[full], name


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_result_knows_every_name_by_which_it_can_be_asked(kind: str) -> None:
    config = CONFIGS[kind]
    names = list(spellings(config))
    assert len(names) > 100
    for name in names:
        check(config, traced(config, [name]), name, "all")


@pytest.mark.parametrize("layers", ["all", 1, [1], [1, 0], [-1]])
@pytest.mark.parametrize(
    "names",
    [
        ["blocks.0.attn.q.hook_out", "k", "hook_out", "unembed.hook_out"],
        ["embed.hook_out", "attn.o.hook_in", "mlp.out.hook_in", "hook_in"],
        ["attn.q.hook_out", "encoder.attn.q.hook_out", "encoder.blocks.0.hook_in", "encoder.blocks.1.hook_resid_pre"],
        ["blocks.1.hook_out", "blocks.0.hook_out", "ln1.hook_in"],
    ],
)
def test_each_of_several_names_keeps_its_meaning(names: list[str], layers: Any) -> None:
    config = CONFIGS["both"]
    result = traced(config, names, layers)
    for name in names:
        check(config, result, name, layers)


def test_one_point_asked_by_two_names_in_different_layers_has_both() -> None:
    result = traced(tiny_config(), ["attn.q.hook_out", "blocks.1.q", "hook_out"], layers=[0])
    for name, full in (
        ("attn.q.hook_out.0", "blocks.0.attn.hook_q"),
        ("blocks.1.attn.q.hook_out", "blocks.1.attn.hook_q"),
        ("blocks.0.hook_out", "blocks.0.hook_resid_post"),
    ):
        assert result.point(name) is result.arrays[full]
    assert (result.stacked("attn.q.hook_out")[:, 0] == [0, 1]).all()
    with pytest.raises(KeyError, match="2 times"):
        result["q"]
    assert "q" not in result


def test_a_result_of_one_layer_knows_its_names_without_the_layer() -> None:
    result = traced(tiny_config(), ["blocks.0.attn.q.hook_out"])
    for name in ("blocks.0.attn.q.hook_out", "attn.q.hook_out", "q", "hook_q", "attn.q", "blocks.0.attn.hook_q"):
        assert result[name].tolist() == [0], name
    for name in ("hook_out", "blocks.1.attn.q.hook_out", "cross_attn.q", "k", "blocks.0.q.0", ""):
        assert name not in result, name
