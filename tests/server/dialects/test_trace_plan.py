"""The plan of a trace: the size computed before the pass equals the size of the planned captures."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.checkpoint.registry import read_config
from model.config import ModelConfig
from model.hooks.point_names import points_of, stacks
from server.generation.interventions.trace_plan import Lengths, check_trace_size, choose_points, plan_inputs
from server.http.errors import PayloadTooLarge
from server.schemas.inspect.trace import TraceRequest
from tests import tiny
from tests.support.examples import examples


@pytest.fixture(scope="module", params=["llama-gqa", "bart", "bert"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_config(tiny.make_variant(request.param, tmp_path_factory.mktemp("model")))


@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_estimate_is_the_size_of_the_plans(config: ModelConfig, data: st.DataObject) -> None:
    names = [
        f"encoder.{point.name}" if stack == "encoder" and config.kind == "encoder-decoder" else point.name
        for stack in stacks(config)
        for point in points_of(config, stack)
    ]
    lengths = data.draw(st.lists(st.builds(Lengths, st.integers(3, 9), st.integers(3, 9)), min_size=1, max_size=4))
    selector = st.sampled_from(["all", 1, -2, [0], [2, 0]])
    fields = {
        "input": "x",
        "points": data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=6, unique=True)),
        "positions": data.draw(selector),
        "dtype": data.draw(st.sampled_from(["float32", "float16"])),
    }
    asked = TraceRequest.model_validate(fields)
    chosen = choose_points(asked, config)
    if any("key" in one.point.axes for one in chosen):
        asked = asked.model_copy(update={"key_positions": data.draw(selector)})
    if any({"head", "kv_head"} & {*one.point.axes} for one in chosen):
        asked = asked.model_copy(update={"heads": data.draw(st.sampled_from(["all", 0, [1, 0]]))})
        chosen = choose_points(asked, config)
    plans = plan_inputs(asked, chosen, config, lengths)
    size = math.ceil(sum(point.num_bytes for plan in plans for point in plan))
    check_trace_size(asked, chosen, config, lengths, "binary", size, 0)
    with pytest.raises(PayloadTooLarge, match=f"about {size} bytes"):
        check_trace_size(asked, chosen, config, lengths, "binary", size - 1, 0)
    with pytest.raises(PayloadTooLarge, match=f"about {size + 9} bytes"):
        check_trace_size(asked, chosen, config, lengths, "binary", size + 8, 9)


def test_inputs_of_one_length_share_a_plan(config: ModelConfig) -> None:
    """Share plans, since a request may have thousands of inputs and points: a plan for each pair would take minutes."""
    asked = TraceRequest.model_validate({"input": "x", "points": ["hook_resid_post"]})
    chosen = choose_points(asked, config)
    plans = plan_inputs(asked, chosen, config, [Lengths(5, 6), Lengths(7, 6), Lengths(5, 6)])
    assert plans[0] is plans[2]
    assert plans[0] is not plans[1]
