"""Traces arrive exactly, with names that count from either end, and broken answers are refused."""

from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

from lightwell_client import Client, InvalidResponse, TraceResult
from tests.client.answers import TOKENS, Arrays, as_json, as_safetensors, described, draw, fields_of
from tests.client.conftest import Asker
from tests.client.test_inspection import ROLLOUT, ROLLOUT_ARRAYS
from tests.client.wire_server import Reply, WireServer


@pytest.mark.parametrize(("kind", "write"), [("sync", as_safetensors), ("async", as_json)])
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
    """Check that plot(head=5) draws head 5 and not the sixth requested head, and that stacked() does not mix encoder
    and decoder.
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
    assert trace.plot("attn.hook_q", layer=1).get_title() == "attn.hook_q: 2 maps"
    pyplot.close("all")
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
    with pytest.raises(ValueError, match="did not report their number"):  # a server of another version
        client.rollout("The fox").matrix(-1)


def test_several_inputs_come_in_their_order(ask: Asker, server: WireServer) -> None:
    answers: list[tuple[dict[str, Any], Arrays]] = [
        (fields_of(index), {"hook_embed": (("position", "d_model"), draw(3, 4))}) for index in (1, 0)
    ]
    server.will(as_safetensors("points", *answers))
    first, second = ask.call("trace", ["a", "b"], "hook_embed")
    assert (first["hook_embed"] == answers[1][1]["hook_embed"][1]).all()
    assert (second["hook_embed"] == answers[0][1]["hook_embed"][1]).all()


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
