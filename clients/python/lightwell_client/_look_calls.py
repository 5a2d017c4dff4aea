"""The methods that look inside as Calls; see _calls. They ask for safetensors: exact, and a fraction of JSON's size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from lightwell_client._arrays import require_numpy
from lightwell_client._calls import body_of, check_names, num_inputs, reader_of
from lightwell_client._look_options import (
    CircuitsOptions,
    ContributionsOptions,
    CorrelationsOptions,
    ExplainOptions,
    GeometryOptions,
    HeadsOptions,
    LensOptions,
    NextOptions,
    RolloutOptions,
    TraceOptions,
    TrajectoryOptions,
)
from lightwell_client._looks import L, parse_looks
from lightwell_client._mechanisms import Contributions, Explanation, HeadScores, Rollout, Trajectory
from lightwell_client._options import Options
from lightwell_client._predictions import LensResult, NextResult
from lightwell_client._trace import TraceResult
from lightwell_client._weights import Circuits, Correlations, Geometry, Parameters
from lightwell_client._wire import JSON, SAFETENSORS, Answer, Call


def trace(
    model: str | None, input: Any, points: str | Sequence[str], options: Mapping[str, Any]
) -> Call[list[TraceResult]]:
    names = [points] if isinstance(points, str) else list(points)
    call = _look("trace", TraceResult, {"model": model, "input": input, "points": names}, options, TraceOptions)
    asked = call.body or {}

    def parse(answer: Answer) -> list[TraceResult]:
        return [result.asked_for(asked["points"], asked.get("layers")) for result in call.parse(answer)]

    return replace(call, parse=parse)


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


def circuits(model: str | None, options: Mapping[str, Any]) -> Call[list[Circuits]]:
    return _look("circuits", Circuits, {"model": model}, options, CircuitsOptions)


def correlations(model: str | None, input: Any, point: str, options: Mapping[str, Any]) -> Call[list[Correlations]]:
    """One result for all inputs together."""
    fields = {"model": model, "input": input, "point": point}
    return _look("geometry", Correlations, fields, options, CorrelationsOptions, count=1)


def parameters(model: str, options: Mapping[str, Any]) -> Call[Parameters]:
    check_names(options, Options)
    return Call("GET", f"/v1/models/{quote(model)}/parameters", reader_of(Parameters), options=options)


def geometry(model: str, matrix: str, options: Mapping[str, Any]) -> Call[list[Geometry]]:
    """Raises MissingDependency when numpy is not installed."""
    require_numpy("geometry()")
    check_names(options, GeometryOptions)
    query = {"matrix": matrix} | {name: options[name] for name in _GEOMETRY_QUERY if options.get(name) is not None}
    if "spectrum" in query:
        query["spectrum"] = str(query["spectrum"]).lower()
    path = f"/v1/models/{quote(model)}/geometry?{urlencode(query)}"
    return Call("GET", path, lambda answer: parse_looks(answer, Geometry, 1), None, _ACCEPT, options)


_GEOMETRY_QUERY = ("axis", "layer", "head", "pairs", "seed", "spectrum")
_ACCEPT = f"{SAFETENSORS}, {JSON};q=0.1"


def _look(
    name: str,
    kind: type[L],
    fields: Mapping[str, Any],
    options: Mapping[str, Any],
    known: type,
    count: int | None = None,
) -> Call[list[L]]:
    """Raises MissingDependency when numpy is not installed (said before anything is sent)."""
    require_numpy(f"{name}()")
    body = body_of(fields, options, known)
    due = count or (num_inputs(body["input"]) if "input" in body else 1)
    return Call("POST", f"/v1/{name}", lambda answer: parse_looks(answer, kind, due), body, _ACCEPT, options)
