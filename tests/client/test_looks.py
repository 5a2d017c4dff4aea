"""trace(), next(), lens() and the rest: arrays with axes and tokens from both forms of the wire, and their pictures."""

import base64
import html
import json
import re
from typing import Any, assert_type

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot
from safetensors.numpy import save

from lightwell_client import (
    Circuits,
    Client,
    Contributions,
    Correlations,
    Explanation,
    Geometry,
    HeadScores,
    InvalidResponse,
    LensResult,
    NextResult,
    Parameters,
    Rollout,
    TraceResult,
    Trajectory,
)
from lightwell_client._heatmap import heat_map_png
from lightwell_client.interventions import add, mean, patch, scale, temperature, zero
from tests.client.conftest import Asker
from tests.client.wire_server import Reply, WireServer

mpl.use("Agg")  # no display in tests

Array = np.ndarray[Any, Any]
TOKENS = ["<s>", "The", " fox"]
Arrays = dict[str, tuple[tuple[str, ...], Array]]


def fields_of(index: int, **more: Any) -> dict[str, Any]:
    return {"object": "look", "index": index, "tokens": TOKENS, "token_ids": [0, 7, 8], "offsets": None, **more}


def described(name: str, axes: tuple[str, ...], array: Array) -> dict[str, Any]:
    about = {"axes": axes, "shape": array.shape, "dtype": array.dtype.name}
    return about | ({"positions": [0, 1, 2], "layer": 0} if name.startswith("blocks.") else {})


def as_safetensors(holder: str, *answers: tuple[dict[str, Any], Arrays]) -> Reply:
    metadata = {"object": "list", "model": "toy", "usage": json.dumps({"prompt_tokens": 3, "total_tokens": 3})}
    tensors: dict[str, Array] = {}
    for fields, arrays in answers:
        about = {name: described(name, *pair) for name, pair in arrays.items()}
        metadata[f"look.{fields['index']}"] = json.dumps({**fields, holder: about})
        tensors |= {f"{fields['index']}/{name}": array for name, (_, array) in arrays.items()}
    return Reply(body=save(tensors, metadata=metadata), headers={"Content-Type": "application/vnd.safetensors"})


def as_json(holder: str, *answers: tuple[dict[str, Any], Arrays]) -> Reply:
    data = [
        {**fields, holder: {name: described(name, *pair) | {"data": listed(pair[1])} for name, pair in arrays.items()}}
        for fields, arrays in answers
    ]
    return Reply(body={"object": "list", "model": "toy", "usage": {"prompt_tokens": 3}, "data": data})


def listed(array: Array) -> Any:
    """Return nested lists in which what is not finite is null."""
    return json.loads(json.dumps(array.tolist()).replace("-Infinity", "null"))


def draw(*shape: int) -> Array:
    return np.random.default_rng().normal(size=shape).astype(np.float32)


def check_nothing_is_cut(figure: Any) -> None:
    """Assert that all that is drawn is within the picture: savefig cut labels of the parameters."""
    figure.canvas.draw()
    (left, bottom), (right, top) = figure.get_tightbbox().get_points()
    width, height = figure.get_size_inches()
    assert min(left, bottom) >= 0
    assert (right <= width, top <= height) == (True, True)


@pytest.mark.parametrize("write", [as_safetensors, as_json])
def test_a_trace_brings_each_point_exactly_with_its_axes(ask: Asker, server: WireServer, write: Any) -> None:
    q, scores = draw(3, 2, 4), np.where(np.tri(3, dtype=bool), draw(2, 3, 3), -np.inf).astype(np.float32)
    arrays: Arrays = {
        "blocks.0.attn.hook_q": (("position", "head", "d_head"), q),
        "blocks.0.attn.hook_attn_scores": (("head", "query", "key"), scores),
    }
    server.will(write("points", (fields_of(0), arrays)))
    trace = ask.call("trace", "The fox", ["attn.hook_q", "attn.hook_attn_scores"], layers=0, positions=[0, 1, 2])
    assert server.seen[-1].path == "/v1/trace"
    body = server.seen[-1].body
    assert body["points"] == ["attn.hook_q", "attn.hook_attn_scores"]
    assert (body["layers"], body["positions"]) == (0, [0, 1, 2])
    assert isinstance(trace, TraceResult)
    assert (trace["blocks.0.attn.hook_q"] == q).all()
    assert (trace["blocks.0.attn.hook_attn_scores"] == scores).all()
    assert trace.point("attn.hook_q", 0).axes == ("position", "head", "d_head")
    assert (trace.stacked("attn.hook_q")[0] == q).all()
    assert trace.tokens == tuple(TOKENS)
    assert set(trace) == set(arrays)
    assert trace.usage is not None
    assert trace.usage.prompt_tokens == 3


def test_heads_layers_and_stacks_of_a_trace_go_by_their_own_names(client: Client, server: WireServer) -> None:
    """Check that plot(head=5) does not draw place 5 of what was requested, and stacked() does not mix encoder and
    decoder.
    """
    q, own, cross = draw(3, 2, 4), draw(3, 4), draw(3, 4)
    arrays: Arrays = {
        "decoder.blocks.1.attn.hook_q": (("position", "head", "d_head"), q),
        "encoder.blocks.0.hook_resid_pre": (("position", "d_model"), own),
        "decoder.blocks.0.hook_resid_pre": (("position", "d_model"), cross),
    }
    reply = as_json("points", (fields_of(0), arrays))
    reply.body["data"][0]["points"]["decoder.blocks.1.attn.hook_q"]["heads"] = [5, 2]
    server.will(reply)
    trace = client.trace("The fox", "all")
    drawn = trace.plot("attn.hook_q", layer=1, head=2)
    assert (np.asarray(drawn.images[0].get_array()) == q[:, 1]).all()
    pyplot.close(drawn.figure)
    with pytest.raises(ValueError, match=r"head is 0; this answer has \[5, 2\]"):
        trace.plot("attn.hook_q", layer=1, head=0)
    with pytest.raises(ValueError, match="say which head"):
        trace.plot("attn.hook_q", layer=1)
    assert (trace["attn.hook_q"] == q).all()
    assert (trace["hook_resid_pre"] == cross).all()  # as in requests
    with pytest.raises(ValueError, match="in both stacks"):
        trace.stacked("hook_resid_pre")
    assert (trace.stacked("hook_resid_pre", "encoder") == own[None]).all()
    assert (trace.stacked("hook_resid_pre", "decoder") == cross[None]).all()
    with pytest.raises(KeyError, match="of the encoder"):
        trace.stacked("attn.hook_q", "encoder")


SIZES = {"num_layers": 6, "num_heads": 8, "num_kv_heads": 2}


def test_negative_layers_and_heads_count_from_the_models_end(client: Client, server: WireServer) -> None:
    """Check that layer=-1 works in requests and in results. Of some layers it means the model's last."""
    q, k = draw(3, 2, 4), draw(3, 2, 4)
    arrays: Arrays = {
        "blocks.2.attn.hook_q": (("position", "head", "d_head"), q),
        "blocks.5.attn.hook_k": (("position", "kv_head", "d_head"), k),
    }
    reply = as_json("points", (fields_of(0), arrays))
    reply.body["stacks"] = {"decoder": SIZES}
    reply.body["data"][0]["points"]["blocks.2.attn.hook_q"]["heads"] = [5, 2]
    server.will(reply)
    trace = client.trace("The fox", ["attn.hook_q", "attn.hook_k"])
    assert (trace.point("attn.hook_q", -4).array == trace.point("attn.hook_q").array).all()
    assert (trace.point("attn.hook_k", -1).array == k).all()
    with pytest.raises(KeyError, match=r"no point 'attn\.hook_q' of layer -1"):
        trace.point("attn.hook_q", -1)
    with pytest.raises(ValueError, match="layer is -7, and the model has 6"):
        trace.point("attn.hook_q", -7)
    for name, head, expected in (("attn.hook_q", -3, q[:, 0]), ("attn.hook_k", -1, k[:, 1])):
        drawn = trace.plot(name, head=head)
        assert (np.asarray(drawn.images[0].get_array()) == expected).all()
        pyplot.close(drawn.figure)
    rollout = as_json("arrays", (fields_of(0, **ROLLOUT), ROLLOUT_ARRAYS))
    rollout.body["stacks"] = {"decoder": {**SIZES, "num_layers": 2}}
    server.will(rollout, as_json("arrays", (fields_of(0, **ROLLOUT), ROLLOUT_ARRAYS)))
    assert (client.rollout("The fox").matrix(-1) == np.tri(3)).all()
    with pytest.raises(ValueError, match="did not tell how many"):  # a server of another version
        client.rollout("The fox").matrix(-1)


def test_several_inputs_come_in_their_order(ask: Asker, server: WireServer) -> None:
    answers: list[tuple[dict[str, Any], Arrays]] = [
        (fields_of(index), {"hook_embed": (("position", "d_model"), draw(3, 4))}) for index in (1, 0)
    ]
    server.will(as_safetensors("points", *answers))
    first, second = ask.call("trace", ["a", "b"], "hook_embed")
    assert (first["hook_embed"] == answers[1][1]["hook_embed"][1]).all()
    assert (second["hook_embed"] == answers[0][1]["hook_embed"][1]).all()


def test_types_follow_the_input(server: WireServer, client: Client) -> None:
    point: Arrays = {"hook_embed": (("position", "d_model"), draw(3, 4))}
    server.will(as_json("points", (fields_of(0), point)), as_json("points", (fields_of(0), point)))
    assert_type(client.trace("a", "hook_embed"), TraceResult)
    assert_type(client.trace(["a"], "hook_embed"), list[TraceResult])


def test_a_name_that_is_not_there_is_told_with_those_that_are(client: Client, server: WireServer) -> None:
    server.will(as_json("points", (fields_of(0), {"hook_embed": (("position", "d_model"), draw(3, 4))})))
    trace = client.trace("a", "hook_embed")
    with pytest.raises(KeyError, match="it has hook_embed"):
        trace["hook_pos_embed"]
    with pytest.raises(KeyError, match="it has hook_embed"):
        trace.point("attn.hook_q", 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fields, about: about.update(shape=[5, 3]),
        lambda fields, about: about.update(axes=["position"]),
        lambda fields, about: about.pop("axes"),
        lambda fields, about: fields.update(index=5),
        lambda fields, about: fields.update(tokens=3),
    ],
)
def test_an_answer_that_does_not_fit_itself_is_refused(client: Client, server: WireServer, spoil: Any) -> None:
    about = described("hook_embed", ("position", "d_model"), draw(3, 4)) | {"data": [[0] * 4] * 3}
    fields = fields_of(0, points={"hook_embed": about})
    spoil(fields, about)
    server.will(Reply(body={"object": "list", "model": "toy", "data": [fields]}))
    with pytest.raises(InvalidResponse):
        client.trace("a", "hook_embed")


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
LENS = {
    "layers": [0, 1],
    "positions": [0, 1, 2],
    "top_tokens": [[["a"], ["b"], ["c"]], [["d"], ["e"], ["f"]]],
    "target": {"token_id": 5, "token": " ran"},
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
CONTRIBUTIONS = {
    "part": "decoder",
    "layers": [0, 1],
    "heads": [0, 1],
    "query_positions": [2],
    "key_positions": [0, 1, 2],
    "target": {"token_id": 5, "token": " ran"},
}
CONTRIBUTIONS_ARRAYS: Arrays = {"attributions": (("layer", "head", "query", "key"), draw(2, 2, 1, 3))}
TRAJECTORY = {"part": "decoder", "positions": [2], "compare_positions": None}
TRAJECTORY_ARRAYS: Arrays = {"cosine_to_start": (("position", "state"), draw(1, 3))}
HEADS = {
    "part": "decoder",
    "layers": [0, 1],
    "heads": [0, 1],
    "measures": ["previous_token", "induction"],
    "strongest": {},
}
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
CIRCUITS = {"part": "decoder", "layers": [0, 1], "heads": [0, 1], "kv_heads": [0, 0]}
CIRCUITS_ARRAYS: Arrays = {"ov.effective_rank": (("layer", "head"), np.ones((2, 2), np.float32))}
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
]


@pytest.mark.parametrize(("method", "arguments", "result_type", "fields", "arrays"), ROUTES)
@pytest.mark.parametrize("write", [as_safetensors, as_json])
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
    if method == "geometry":  # which must first ask for the model's name
        server.will(Reply(body={"data": [{"id": "org/toy"}]}))
    server.will(write("arrays", (fields_of(0, **fields), arrays)))
    result: Any = ask.call(method, *arguments)
    paths = {"correlations": "/v1/geometry", "geometry": "/v1/models/org/toy/geometry?matrix=W_E"}
    assert server.seen[-1].path == paths.get(method, f"/v1/{method}")
    assert isinstance(result, result_type)
    for name, (axes, array) in arrays.items():
        assert (result[name] == array).all()
        assert result.arrays[name].axes == axes
    drawn = result.plot()
    assert drawn.get_xlabel() or drawn.get_ylabel()
    check_nothing_is_cut(drawn.figure)
    for name, (axes, array) in arrays.items():
        lengths = ", ".join(f"{axis} {length}" for axis, length in zip(axes, array.shape, strict=True))
        assert f"\n  {name}: [{lengths}] {array.dtype.name}" in str(result)
    assert html.escape(str(result)) in result._repr_html_()
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
        contributions.by_key(0)  # it was a place among those asked for
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


class Tensor:
    """A stand-in with what a torch tensor offers, which the client's environment need not have."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def detach(self) -> "Tensor":
        return self

    def float(self) -> "Tensor":
        return Tensor(self._array.astype("<f4"))

    def cpu(self) -> "Tensor":
        return self

    def is_complex(self) -> bool:
        return bool(np.iscomplexobj(self._array))

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    @property
    def ndim(self) -> int:
        return self._array.ndim


def test_tensors_and_masked_scores_are_values() -> None:
    scores = np.array([[0.5, -np.inf], [1.0, 2.0]], "<f4")
    value = patch("attn.hook_attn_scores", scores, layer=0)["value"]
    assert (np.frombuffer(base64.b64decode(value["data"]), "<f4").reshape(2, 2) == scores).all()
    assert patch("hook_embed", Tensor(np.ones(3, "<f8")))["value"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "value",
    [
        *(np.nan, np.inf, np.array([1, np.nan]), [1.0, np.inf], ["a"], [[1], [1, 2]], object()),
        *(np.array([1 + 2j]), np.complex64(1), Tensor(np.array([1 + 2j])), [2j]),  # imaginary parts were dropped
        *(np.array(["1"]), ["1", 2], [None, "1"], np.array(["1"], object)),  # texts were read as numbers
        *(np.array([-1e300]), [1.0, 1e39]),  # too large for float32: one became minus infinity
    ],
)
def test_what_is_no_value_is_refused_before_anything_is_sent(value: Any, client: Client, server: WireServer) -> None:
    with pytest.raises(ValueError, match="value"):
        patch("hook_embed", value)
    if hasattr(value, "tolist"):
        with pytest.raises(ValueError, match="value"):
            client.next("x", interventions=[{"point": "hook_embed", "op": "patch", "value": value}])
    assert server.seen == []


MASKED = np.array([[0.5, -np.inf], [1.0, 2.0]], "<f4")


@pytest.mark.parametrize("value", [MASKED, MASKED.tolist(), [[0.5, None], [1.0, 2.0]]])
def test_masked_scores_in_a_plain_dict_are_sent_as_those_of_the_helpers(
    ask: Asker, server: WireServer, value: Any
) -> None:
    plain = {"point": "attn.hook_attn_scores", "op": "patch", "layer": 0, "value": value}
    for change in (plain, patch("attn.hook_attn_scores", value, layer=0)):
        server.will(as_json("arrays", (fields_of(0, **NEXT), {})))
        ask.call("next", "The fox", interventions=[change])
        [sent] = server.seen[-1].body["interventions"]
        assert (np.frombuffer(base64.b64decode(sent["value"]["data"]), "<f4").reshape(2, 2) == MASKED).all()
    assert plain["value"] is value, "what the caller holds stays as it is"


@pytest.mark.parametrize(
    ("method", "arguments", "options", "said"),
    [
        ("attention", [5], {}, "input is 5; a text"),
        ("generate", [1.5], {}, "prompt is 1.5; a text"),
        ("embed", [True], {}, "input is True; a text"),
        ("trace", [np.int64(5), "hook_embed"], {}, r"input is .*5\)?; a text"),
        ("generate", [np.array(5)], {}, r"prompt is array\(5\); a text"),
        ("attention", [Tensor(np.array(5))], {}, r"input is .*; a text"),
        ("trace", ["x", "hook_embed"], {"positions": object()}, "nothing that a request can hold"),
        ("next", ["x"], {"temperatures": [np.nan]}, "NaN or infinity"),
    ],
)
def test_what_no_request_can_hold_is_refused_before_anything_is_sent(
    ask: Asker, server: WireServer, method: str, arguments: list[Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        ask.call(method, *arguments, **options)
    assert server.seen == []


def test_interventions_are_plain_data(ask: Asker, server: WireServer) -> None:
    vector = draw(512)
    asked = [
        zero("attn.hook_z", layer=1, head=3),
        mean("hook_mlp_out", layer=0),
        scale("hook_resid_post", 2.5, layer=[0, 1], positions=-1),
        add("hook_resid_post", vector, layer=1),
        add("hook_resid_post", vector[:3], layer=1),
        patch("attn.hook_pattern", layer=0, head="all", source="another text"),
        patch("hook_embed", source={"input": [1, 2, 3], "positions": 0}),
        temperature(0, layer=0),
        {"point": "hook_embed", "op": "zero"},
    ]
    server.will(as_json("arrays", (fields_of(0, **NEXT), {})))
    ask.call("next", "The fox", interventions=asked)
    sent = server.seen[-1].body["interventions"]
    assert sent[0] == {"point": "attn.hook_z", "op": "zero", "layer": 1, "head": 3}
    assert sent[1] == {"point": "hook_mlp_out", "op": "mean", "layer": 0}
    assert sent[2] == {"point": "hook_resid_post", "op": "scale", "layer": [0, 1], "positions": -1, "value": 2.5}
    assert (np.frombuffer(base64.b64decode(sent[3]["value"]["data"]), "<f4") == vector).all()
    assert (sent[3]["value"]["shape"], sent[3]["value"]["dtype"]) == ([512], "float32")
    assert np.float32(sent[4]["value"]).tolist() == vector[:3].tolist()
    assert sent[5]["from"] == {"input": "another text"}
    assert sent[6]["from"] == {"input": [1, 2, 3], "positions": 0}
    assert sent[7] == {"point": "attn.hook_attn_scores", "op": "temperature", "layer": 0, "value": 0}
    assert sent[8] == {"point": "hook_embed", "op": "zero"}


def test_an_argument_that_is_not_there_is_refused_before_anything_is_sent(ask: Asker, server: WireServer) -> None:
    with pytest.raises(TypeError, match="target"):
        ask.call("lens", "The fox", tarket=3)
    assert not server.seen
