"""The methods that look inside as Calls; see _calls. They ask for safetensors: exact, and a fraction of JSON's size."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightwell_client._arrays import require_numpy
from lightwell_client._calls import body_of, num_inputs
from lightwell_client._look_options import (
    ContributionsOptions,
    ExplainOptions,
    HeadsOptions,
    LensOptions,
    NextOptions,
    RolloutOptions,
    TraceOptions,
    TrajectoryOptions,
)
from lightwell_client._looks import L, parse_looks
from lightwell_client._mechanisms import Contributions, Explanation, HeadScores, Rollout, Trajectory
from lightwell_client._predictions import LensResult, NextResult
from lightwell_client._trace import TraceResult
from lightwell_client._wire import JSON, SAFETENSORS, Call


def trace(
    model: str | None, input: Any, points: str | Sequence[str], options: Mapping[str, Any]
) -> Call[list[TraceResult]]:
    names = [points] if isinstance(points, str) else list(points)
    return _look("trace", TraceResult, {"model": model, "input": input, "points": names}, options, TraceOptions)


def next_token(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[NextResult]]:
    return _look("next", NextResult, {"model": model, "input": input}, options, NextOptions)


def lens(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[LensResult]]:
    return _look("lens", LensResult, {"model": model, "input": input}, options, LensOptions)


def explain(
    model: str | None, input: Any, layer: int, head: int, options: Mapping[str, Any]
) -> Call[list[Explanation]]:
    fields = {"model": model, "input": input, "layer": layer, "head": head}
    return _look("explain", Explanation, fields, options, ExplainOptions)


def contributions(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[Contributions]]:
    return _look("contributions", Contributions, {"model": model, "input": input}, options, ContributionsOptions)


def trajectory(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[Trajectory]]:
    return _look("trajectory", Trajectory, {"model": model, "input": input}, options, TrajectoryOptions)


def heads(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[HeadScores]]:
    return _look("heads", HeadScores, {"model": model, "input": input}, options, HeadsOptions)


def rollout(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[Rollout]]:
    return _look("rollout", Rollout, {"model": model, "input": input}, options, RolloutOptions)


def _look(
    name: str, kind: type[L], fields: Mapping[str, Any], options: Mapping[str, Any], known: type
) -> Call[list[L]]:
    """Raises MissingDependency when numpy is not installed (said before anything is sent)."""
    require_numpy(f"{name}()")
    body = body_of(fields, options, known)
    count = num_inputs(body["input"]) if "input" in body else 1
    return Call(
        "POST",
        f"/v1/{name}",
        lambda answer: parse_looks(answer, kind, count),
        body,
        f"{SAFETENSORS}, {JSON};q=0.1",
        options,
    )
