"""Results are mappings from names to numpy arrays, and become one array, a data frame or an HTML page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lightwell_client import Client, Embeddings
from lightwell_client._embeddings import parse_embeddings
from lightwell_client.interventions import patch
from tests.client.answers import Arrays, as_json, as_safetensors, draw, fields_of
from tests.client.test_attention import TOKENS, answered, causal
from tests.client.test_inspection import NEXT
from tests.client.wire_server import WireServer

Q, STREAM = draw(3, 2, 4), draw(3, 4)
TRACED: Arrays = {
    "blocks.0.attn.hook_q": (("position", "head", "d_head"), Q),
    "blocks.0.hook_resid_post": (("position", "d_model"), STREAM),
}


def embeddings(**entry: Any) -> Embeddings:
    return parse_embeddings({"model": "toy", "data": [{"index": 0, "embedding": [1, 2]} | entry]}, 1)


@pytest.mark.parametrize("write", [as_safetensors, as_json])
def test_a_result_is_a_mapping_of_arrays_that_may_be_written_to(client: Client, server: WireServer, write: Any) -> None:
    server.will(write("points", (fields_of(0), TRACED)))
    trace = client.trace("The fox", "all")
    assert list(trace.keys()) == list(TRACED)
    assert all((array == TRACED[name][1]).all() for name, array in dict(trace).items())
    assert trace.get("hook_q") is trace["blocks.0.attn.hook_q"]
    assert trace.get("hook_k") is None
    trace["hook_q"][0] = 7
    assert (trace["blocks.0.attn.hook_q"][0] == 7).all()
    with pytest.raises(
        ValueError, match=r"this answer has 2 arrays, .*name one, as in result\['blocks.0.attn.hook_q'\]"
    ):
        np.asarray(trace)
    assert (np.asarray(trace.point("hook_resid_post")) == STREAM).all()


def test_attention_is_a_mapping_too_and_one_array(client: Client, server: WireServer) -> None:
    pattern = causal(2, 3)
    result = answered(client, server, pattern)
    assert isinstance(result, Mapping)
    assert list(result.items()) == [("attention", result.attention)]
    assert result["attention"] is result.attention
    assert result.arrays["attention"].axes == ("layer", "head", "query", "key")
    assert (np.asarray(result) == pattern).all()
    assert np.asarray(result, dtype="float16").dtype == "float16"
    result.attention[0] = 0
    with pytest.raises(KeyError, match="it has attention"):
        result["atention"]
    assert result == result  # noqa: PLR0124 (a mapping of arrays would compare them)


def test_an_answer_without_arrays_is_no_array(client: Client, server: WireServer) -> None:
    server.will(as_json("arrays", (fields_of(0, **NEXT), {})))
    with pytest.raises(ValueError, match="this answer has 0 arrays, none"):
        np.asarray(client.next("The fox"))


def test_embeddings_are_their_matrix_and_an_embedding_its_vector() -> None:
    pooled = embeddings()
    assert (np.asarray(pooled) == [[1, 2]]).all()
    assert (np.asarray(pooled[0]) == [1, 2]).all()
    pooled.matrix[0] = 7
    each = embeddings(embedding=[[1, 2], [3, 4]], tokens=["a", "b"])
    assert np.asarray(each[0]).shape == (2, 2)
    with pytest.raises(ValueError, match="one vector a token"):
        np.asarray(each)


def test_results_are_values_of_interventions_as_their_arrays_are(client: Client, server: WireServer) -> None:
    server.will(as_json("points", (fields_of(0), {"blocks.0.hook_resid_post": TRACED["blocks.0.hook_resid_post"]})))
    trace = client.trace("The fox", "hook_resid_post")
    point, array = trace.point("hook_resid_post"), trace["hook_resid_post"]
    assert patch("hook_resid_post", trace) == patch("hook_resid_post", point) == patch("hook_resid_post", array)
    for value in (trace, point, array):
        client.generate("x", interventions={"point": "hook_resid_post", "op": "patch", "value": value})
        assert server.seen[-1].body["interventions"][0]["value"] == STREAM.tolist()


def test_a_data_frame_has_a_row_for_each_number_with_its_tokens(client: Client, server: WireServer) -> None:
    pattern = causal(2, 3)
    frame = answered(client, server, pattern).to_pandas()
    assert frame.index.names == ["layer", "head", "query", "key"]
    assert list(frame.columns) == ["query_token", "key_token", "attention"]
    row = frame.loc[(5, 7, 3, 0)]
    assert (row["query_token"], row["key_token"], row["attention"]) == (TOKENS[3], TOKENS[0], pattern[1, 2, 3, 0])
    server.will(as_json("points", (fields_of(0), TRACED)))
    trace = client.trace("The fox", "all")
    assert trace.to_pandas("hook_q").loc[(2, 1, 3), "hook_q"] == Q[2, 1, 3]
    assert list(trace.to_pandas("hook_q")["position_token"].unique()) == list(trace.tokens)
    with pytest.raises(ValueError, match="name one"):
        trace.to_pandas()
    frame = embeddings().to_pandas()
    assert (frame.shape, frame.index.name) == ((1, 2), "input")
