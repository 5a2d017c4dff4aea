"""trace(), next(), lens() and the rest: arrays with axes and tokens from both response formats, and their pictures."""

import base64
import html
import re
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

from lightwell_client import (
    Circuits,
    Client,
    Contributions,
    Correlations,
    Explanation,
    Geometry,
    HeadScores,
    LensResult,
    NextResult,
    Parameters,
    Rollout,
    Trajectory,
    Weights,
)
from lightwell_client._heatmap import heat_map_png
from tests.client.answers import Arrays, as_json, as_safetensors, check_nothing_is_cut, draw, fields_of
from tests.client.conftest import Asker
from tests.client.wire_server import Reply, WireServer

mpl.use("Agg")  # no display in tests


NEXT = {
    "position": 2,
    "temperatures": [
        {
            "temperature": t,
            "entropy": 1.0,
            "kept_entropy": 0.5,
            "num_kept": 1,
            "tokens": [
                {"token_id": 5, "token": " ran", "logit": 2.0, "probability": 0.6, "kept_probability": 1.0},
                {"token_id": 6, "token": "\n", "logit": 1.0, "probability": 0.3, "kept_probability": 0.0},
            ],
        }
        for t in (0.5, 1.0)
    ],
}
TARGET = {"target": {"token_id": 5, "token": " ran"}}
LENS = {
    "layers": [0, 1],
    "positions": [0, 1, 2],
    "top_tokens": [[["a"], ["b"], ["c"]], [["d"], ["e"], ["f"]]],
    **TARGET,
}
LENS_ARRAYS: Arrays = {
    "ids": (("layer", "position", "k"), np.arange(6, dtype=np.int32).reshape(2, 3, 1)),
    "probabilities": (("layer", "position", "k"), np.full((2, 3, 1), 0.5, np.float32)),
    "entropy": (("layer", "position"), np.ones((2, 3), np.float32)),
    "target_probabilities": (("layer", "position"), np.full((2, 3), 0.25, np.float32)),
    "target_ranks": (("layer", "position"), np.ones((2, 3), np.int32)),
}
EXPLAIN = {
    "part": "decoder",
    "layer": 0,
    "head": 1,
    "kv_head": 0,
    "query_position": 2,
    "key_positions": [0, 1, 2],
    "scale": 0.5,
    "softcap": None,
    "window": None,
    "causal": True,
    "softmax": {"largest_score": 1.0, "sum_of_exponentials": 2.0, "sum_of_weights": 1.0},
    "differences": {"pattern": 1e-8},
}
EXPLAIN_ARRAYS: Arrays = {"weights": (("key",), np.array([0.2, 0.3, 0.5], np.float32))}
PLACE = {"part": "decoder", "layers": [0, 1], "heads": [0, 1]}
CONTRIBUTIONS = {**PLACE, **TARGET, "query_positions": [2], "key_positions": [0, 1, 2]}
CONTRIBUTIONS_ARRAYS: Arrays = {"attributions": (("layer", "head", "query", "key"), draw(2, 2, 1, 3))}
TRAJECTORY = {"part": "decoder", "positions": [2], "compare_positions": None}
TRAJECTORY_ARRAYS: Arrays = {"cosine_to_start": (("position", "state"), draw(1, 3))}
HEADS = {**PLACE, "measures": ["previous_token", "induction"], "strongest": {}}
HEADS_ARRAYS: Arrays = {"scores": (("layer", "head", "measure"), draw(2, 2, 2))}
ROLLOUT = {"part": "decoder", "method": "rollout", "layers": [1], "query_positions": [0, 1, 2]}
ROLLOUT_ARRAYS: Arrays = {"rollout": (("layer", "query", "key"), np.tri(3, dtype=np.float32)[None])}

GEOMETRY = {
    "matrix": "embed.W_E",
    "axis": "rows",
    "head": None,
    "num_vectors": 5,
    "dimension": 4,
    "num_pairs": 10,
    "num_compared": 10,
    "sampled": False,
    "norms": {"mean": 1.0},
    "cosines": {"mean": 0.1, "std": 0.5, "smallest": -0.9, "largest": 0.8, "quantiles": {"0.5": 0.1}},
    "baseline": {"mean": 0.0, "std": 0.5, "largest": 0.9, "welch_bound": 0.25},
    "spectrum": None,
}
HISTOGRAM: Arrays = {"histogram": (("bin",), np.arange(4, dtype=np.int32))}
CIRCUITS = {**PLACE, "kv_heads": [0, 0]}
CIRCUITS_ARRAYS: Arrays = {"ov.effective_rank": (("layer", "head"), np.ones((2, 2), np.float32))}
WEIGHTS = {"name": "embed.W_E", "head": None, "rows": [7, 2], "columns": None, "whole_shape": [5, 4], "tied_to": None}
WEIGHTS_ARRAYS: Arrays = {"weights": (("d_vocab", "d_model"), draw(2, 4))}
CORRELATIONS = {
    "point": "blocks.0.mlp.hook_post",
    "num_samples": 9,
    "num_units": 4,
    "num_constant_units": 0,
    "num_pairs": 6,
    "mean_correlation": 0.1,
    "root_mean_square_correlation": 0.2,
    "mean_information": 0.3,
    "baseline": {"std": 0.35, "information": 0.07},
}

ROUTES: list[tuple[str, tuple[Any, ...], type[Any], dict[str, Any], Arrays]] = [
    ("next", ("The fox",), NextResult, NEXT, {}),
    ("lens", ("The fox",), LensResult, LENS, LENS_ARRAYS),
    ("explain", ("The fox", 0, 1), Explanation, EXPLAIN, EXPLAIN_ARRAYS),
    ("contributions", ("The fox",), Contributions, CONTRIBUTIONS, CONTRIBUTIONS_ARRAYS),
    ("trajectory", ("The fox",), Trajectory, TRAJECTORY, TRAJECTORY_ARRAYS),
    ("heads", (), HeadScores, HEADS, HEADS_ARRAYS),
    ("rollout", ("The fox",), Rollout, ROLLOUT, ROLLOUT_ARRAYS),
    ("circuits", (), Circuits, CIRCUITS, CIRCUITS_ARRAYS),
    ("correlations", (["The fox", "A goose"], "mlp.hook_post"), Correlations, CORRELATIONS, HISTOGRAM),
    ("geometry", ("W_E",), Geometry, GEOMETRY, HISTOGRAM),
    ("weights", ("W_E",), Weights, WEIGHTS, WEIGHTS_ARRAYS),
]


@pytest.mark.parametrize(("method", "arguments", "result_type", "fields", "arrays"), ROUTES)
@pytest.mark.parametrize(("kind", "write"), [("sync", as_safetensors), ("async", as_json)])
def test_every_look_arrives_typed_and_can_be_drawn(
    ask: Asker,
    server: WireServer,
    write: Any,
    method: str,
    arguments: tuple[Any, ...],
    result_type: type[Any],
    fields: dict[str, Any],
    arrays: Arrays,
) -> None:
    if method in ("geometry", "weights"):  # which first request the model's name
        server.will(Reply(body={"data": [{"id": "org/toy"}]}))
    server.will(write("arrays", (fields_of(0, **fields), arrays)))
    result: Any = ask.call(method, *arguments)
    paths = {"correlations": "/v1/geometry", "geometry": "/v1/models/org/toy/geometry?matrix=W_E"}
    paths["weights"] = "/v1/models/org/toy/weights/W_E"
    assert server.seen[-1].path == paths.get(method, f"/v1/{method}")
    assert isinstance(result, result_type)
    assert isinstance(result, Mapping)
    assert dict(result).keys() == result.keys() == arrays.keys()
    for name, (axes, array) in arrays.items():
        assert (result[name] == array).all()
        assert result.arrays[name].axes == axes
    drawn = result.plot()
    assert drawn.get_xlabel() or drawn.get_ylabel()
    assert drawn.get_title()
    check_nothing_is_cut(drawn.figure)
    for name, (axes, array) in arrays.items():
        lengths = ", ".join(f"{axis} {length}" for axis, length in zip(axes, array.shape, strict=True))
        assert f"\n  {name}: [{lengths}] {array.dtype.name}" in str(result)
    assert html.escape(str(result)) in result._repr_html_()
    assert (
        result.to_html()
        == f"<!doctype html><meta charset=utf-8><title>{result_type.__name__}</title>{result._repr_html_()}\n"
    )
    pyplot.close(drawn.figure)


def test_a_notebook_shows_every_array_by_its_own_numbers(client: Client, server: WireServer) -> None:
    q, stream = draw(3, 2, 4), np.abs(draw(3, 100))
    arrays: Arrays = {
        "blocks.0.attn.hook_q": (("position", "head", "d_head"), q),
        "blocks.0.hook_resid_post": (("position", "d_model"), stream),
    }
    reply = as_json("points", (fields_of(0, tokens=["<s>", "The", " fox"]), arrays))
    reply.body["data"][0]["points"]["blocks.0.attn.hook_q"]["heads"] = [5, 2]
    server.will(reply)
    shown = client.trace("The fox", "all")._repr_html_()
    assert re.findall(r"<figcaption[^>]*>([^<]*)", shown) == [
        "blocks.0.hook_resid_post",
        "blocks.0.attn.hook_q, head 5",
        "blocks.0.attn.hook_q, head 2",
    ]
    assert shown.count(">&lt;s&gt;<") == 2, "rows of a narrow picture have their tokens, harmless"
    pictures = [base64.b64decode(picture) for picture in re.findall(r"base64,([^\"]*)", shown)]
    assert pictures == [heat_map_png(stream), heat_map_png(q[:, 0], signed=True), heat_map_png(q[:, 1], signed=True)]
    server.will(as_json("arrays", (fields_of(0, **HEADS), HEADS_ARRAYS)))
    shown = client.heads()._repr_html_()
    assert re.findall(r"scores, measure (\w+)<", shown) == list(HEADS["measures"])
    server.will(as_json("arrays", (fields_of(0, **LENS), LENS_ARRAYS)))
    assert "<th>layer</th>" in client.lens("The fox")._repr_html_()


def test_of_very_many_arrays_a_notebook_and_print_show_the_first(client: Client, server: WireServer) -> None:
    arrays: Arrays = {f"blocks.{i}.hook_resid_pre": (("position", "d_model"), draw(3, 4)) for i in range(100)}
    server.will(as_json("points", (fields_of(0), arrays)))
    trace = client.trace("The fox", "hook_resid_pre")
    assert str(trace).splitlines()[-1] == "  ... and 36 more"
    assert trace._repr_html_().count("<img") == 64
    assert "64 of 100 maps" in trace._repr_html_()
    assert repr(trace.point("hook_resid_pre", 3)) == "NamedArray([position 3, d_model 4] float32)"


def test_selections_are_made_by_the_models_own_numbers(client: Client, server: WireServer) -> None:
    server.will(as_safetensors("arrays", (fields_of(0, **HEADS), HEADS_ARRAYS)))
    heads = client.heads()
    assert (heads.scores("induction") == HEADS_ARRAYS["scores"][1][:, :, 1]).all()
    with pytest.raises(ValueError, match="previous_token, induction"):
        heads.scores("inducton")
    server.will(as_safetensors("arrays", (fields_of(0, **CONTRIBUTIONS), CONTRIBUTIONS_ARRAYS)))
    contributions = client.contributions("The fox", target=" ran")
    for given in (contributions.by_key(), contributions.by_key(2), contributions.by_key(-1)):
        assert np.allclose(given, CONTRIBUTIONS_ARRAYS["attributions"][1].sum((0, 1))[0])
    with pytest.raises(ValueError, match=r"query is 0; this answer has \[2\]"):
        contributions.by_key(0)  # the index is a query position, not a place in the request's list
    server.will(as_safetensors("arrays", (fields_of(0, **ROLLOUT), ROLLOUT_ARRAYS)))
    rollout = client.rollout("The fox")
    assert (rollout.matrix(1) == np.tri(3)).all()
    with pytest.raises(ValueError, match="layer is 7"):
        rollout.matrix(7)


def test_parameters_are_counted_row_by_row(ask: Asker, server: WireServer) -> None:
    row = {"stack": "decoder", "component": "query", "weight": "qkv.weight", "shape": [4, 8], "count": 2}
    body = {
        "object": "parameters",
        "model": "toy",
        "architecture": "ToyForCausalLM",
        "tied": True,
        "total": 64,
        "matrices_untied": 64,
        "num_matrices": 2,
        "components": [{"component": "query", "count": 2, "parameters": 64, "share": 1.0}],
        "rows": [{**row, "parameters": 64, "share": 1.0, "tied_to": None}],
    }
    server.will(Reply(body=body))
    found = ask.call("parameters", "toy")
    assert server.seen[-1].path == "/v1/models/toy/parameters"
    assert isinstance(found, Parameters)
    assert found.total == sum(one.parameters for one in found.rows) == 64
    assert "<td>64</td>" in found._repr_html_()
    drawn = found.plot()
    drawn.set_yticks([0], ["a name as long as those of an encoder-decoder's parts"])
    check_nothing_is_cut(drawn.figure)
    pyplot.close(drawn.figure)


def test_rows_and_columns_of_a_weight_are_asked_for_as_python_writes_them(client: Client, server: WireServer) -> None:
    for rows, written in ((slice(2, 8), "2%3A8"), ([7, 0, -1], "7%2C0%2C-1"), (3, "3"), (slice(None, 4), "%3A4")):
        server.will(as_safetensors("arrays", (fields_of(0, **WEIGHTS), WEIGHTS_ARRAYS)))
        found = client.weights("attn.W_Q", layer=2, head=5, rows=rows, model="org/toy")
        assert server.seen[-1].path == f"/v1/models/org/toy/weights/attn.W_Q?layer=2&head=5&rows={written}"
        assert (found.array == WEIGHTS_ARRAYS["weights"][1]).all()
    with pytest.raises(TypeError, match="has steps"):
        client.weights("W_E", rows=slice(0, 8, 2), model="org/toy")
    data = [{"name": "embed.W_E", "axes": ["d_vocab", "d_model"], "shape": [5, 4], "stored": "bfloat16"}]
    server.will(Reply(body={"data": data}))
    (named,) = client.weight_names(model="org/toy")
    assert (named.name, named.shape, named.stored, named.tied_to) == ("embed.W_E", (5, 4), "bfloat16", None)
    assert server.seen[-1].path == "/v1/models/org/toy/weights"
