"""Interventions of the client: the bodies that are sent, and the errors that are raised before sending."""

import base64
from typing import Any

import numpy as np
import pytest

from lightwell_client import Client
from lightwell_client.interventions import add, mean, patch, scale, temperature, zero
from tests.client.answers import as_json, draw, fields_of
from tests.client.conftest import Asker
from tests.client.test_inspection import NEXT
from tests.client.wire_server import WireServer


class Tensor:
    """A double with a torch tensor's methods; the client's environment need not have torch."""

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


def test_tensors_are_values() -> None:
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
