"""Interventions among other requests: neighbours keep their bits, whatever a request changes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, stack_config
from lightwell.model.hooks.point_names import stacks as stacks_of
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    GenerateTask,
    Intervention,
    Op,
    PointCapture,
    Task,
    TraceTask,
)
from tests import tiny
from tests.server.engine.captures.test_interventions import LENGTH, PROMPT, changeable, trace
from tests.server.engine.driving import Answer, Load, alone, array, build, everything, generate, request, run


def crowd_task(uid: int, config: ModelConfig) -> Task:
    """Return the task of one of many requests that run together: tokens, their rows of attention, traces and
    patterns.
    """
    stack = stacks_of(config)[-1]
    rows = AttentionCapture(pairs=((config.attention_layers[0], 1), (config.attention_layers[-1], 0)), part=stack)
    if config.kind == "encoder" or uid % 4 == 1:
        last = PointCapture(name="x", stack=stack, layer=config.num_layers - 1, point="hook_resid_post")
        return AttentionTask(capture=rows) if uid % 3 == 0 else TraceTask(points=(last,))
    if uid % 4 == 3:
        return AttentionTask(capture=rows)
    return generate(4, seed=uid, temperature=uid % 3, logprobs=1, attention=rows if uid % 4 else None)


def looked_at(task: Task, config: ModelConfig) -> Task:
    """Return the same request with everything captured."""
    if not isinstance(task, GenerateTask):
        return everything(config)
    pairs = tuple((layer, head) for layer in config.attention_layers for head in range(config.num_heads))
    return replace(task, attention=AttentionCapture(pairs=pairs), attention_prompt=True)


def draw_change(data: st.DataObject, model: Transformer, donor: Answer) -> Intervention:
    """Draw any operation at any point, with one number or with numbers for each position, taken from `donor` if it
    captures the point.
    """
    stack, layer, point = data.draw(st.sampled_from(changeable(model)))
    if point.endswith("hook_attn_scores") and data.draw(st.booleans()):
        temperature = data.draw(st.sampled_from([0.0, 0.3, 5.0]))
        return Intervention(stack=stack, layer=layer, point=point, op="temperature", value=temperature)
    op: Op = data.draw(st.sampled_from(["set", "scale", "add"]))
    if data.draw(st.booleans()):
        return Intervention(stack=stack, layer=layer, point=point, op=op, value=data.draw(st.floats(-9, 9)))
    positions = data.draw(st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=5, unique=True))
    if point.endswith(("hook_attn_scores", "hook_pattern")):
        value = array(np.linspace(0.1, 2.0, len(positions))[:, None])
    else:
        value = array(donor.array(full_name(model.config, stack, point, layer))[positions])
    return Intervention(stack=stack, layer=layer, point=point, op=op, array=value, positions=tuple(positions))


@pytest.mark.parametrize("name", tiny.UNLIKE)
@given(data=st.data())
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fifteen_neighbours_keep_their_bits(model_of: Load, name: str, data: st.DataObject) -> None:
    """Check the neighbours' bits whatever one of the requests changes, and whether it is captured."""
    model, config = model_of(name), model_of(name).config
    encoded = PROMPT if config.kind == "encoder-decoder" else ()
    requests = []
    for uid in range(16):
        prompt = [3 + (uid * 7 + i) % 60 for i in range(data.draw(st.integers(1, 14)))]
        requests.append(request(uid, prompt, crowd_task(uid, config), encoded=encoded))
    victim = data.draw(st.integers(0, 15))
    donor = alone(model, [trace(model, prompt=PROMPT[::-1])])[0]
    interventions = tuple(draw_change(data, model, donor) for _ in range(data.draw(st.integers(1, 4))))
    task = requests[victim].task
    task = looked_at(task, config) if data.draw(st.booleans()) else task
    own = replace(requests[victim], interventions=interventions, task=task)
    among = [*requests[:victim], own, *requests[victim + 1 :]]
    expected, found = (run(build(model, max_num_batched_tokens=64), each) for each in (requests, among))
    del expected[victim], found[victim]
    assert found == expected


@pytest.mark.parametrize("name", ["llama-gqa", "bert", "t5"])
def test_a_change_behind_what_is_asked_for_is_nobody_elses(model_of: Load, name: str) -> None:
    """Run a neighbour through layers that a shallow request does not need: there the shallow one has no rows to
    change.
    """
    model, config = model_of(name), model_of(name).config
    first, encoded = stacks_of(config)[0], PROMPT if config.kind == "encoder-decoder" else ()
    interventions = [
        Intervention(
            stack=stack,
            layer=None if layer is None else stack_config(config, stack).num_layers - 1,
            point=point,
            op="scale",
            value=0.5,
        )
        for stack, layer, point in changeable(model)
        if (stack, layer) != (first, None)
    ]
    shallow = AttentionTask(capture=AttentionCapture(pairs=((0, 0),), part=first))
    deep = request(0, range(5, 50), everything(config), encoded=encoded)
    for intervention in interventions:
        changed = request(1, range(6, 36), shallow, encoded=encoded, interventions=(intervention,))
        found = run(build(model), [deep, changed])
        assert found == alone(model, [deep, replace(changed, interventions=())]), intervention.point
