"""The request and the result of each method, on both clients."""

import numpy as np
import pytest

from lightwell_client import AsyncClient, BadRequest, Client, Health, InvalidResponse
from lightwell_client.interventions import zero
from tests.client.conftest import Asker
from tests.client.test_attention import causal, one
from tests.client.wire_server import TEXT, USAGE, Reply, WireServer, completion_chunk, error, event_stream


def test_generate_gives_the_text_and_the_counts(ask: Asker, server: WireServer) -> None:
    completion = ask.call("generate", "Once", max_tokens=8, temperature=0, stop=["\n"], seed=1)
    assert completion.text == TEXT
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].model_extra["new_field"] == 1, "a field that a server adds is kept"
    assert completion.usage.total_tokens == USAGE["total_tokens"]
    assert server.seen[0].body == {"prompt": "Once", "max_tokens": 8, "temperature": 0, "stop": ["\n"], "seed": 1}


@pytest.mark.parametrize("method", ["stream", "chat_stream"])
def test_a_streams_texts_joined_are_the_whole_text(ask: Asker, method: str) -> None:
    whole = ask.call({"stream": "generate", "chat_stream": "chat"}[method], "Once").text
    assert "".join(chunk.text for chunk in ask.collect(method, "Once")) == whole == TEXT


def test_a_stream_cut_inside_characters_and_lines_reads_the_same(ask: Asker, server: WireServer) -> None:
    whole = f"data: {completion_chunk('🐟é')}\r\n\r\n".replace("'", '"').replace("None", "null")
    content = f": hello\r\n\r\n{whole}data: [DONE]\r\n\r\n".encode()
    server.will(event_stream([content[i : i + 1] for i in range(len(content))]))
    assert [chunk.text for chunk in ask.collect("stream", "Once")] == ["🐟é"]


def test_include_usage_brings_the_counts_in_a_last_chunk_without_choices(ask: Asker, server: WireServer) -> None:
    last = ask.collect("stream", "Once", include_usage=True)[-1]
    assert last.usage.completion_tokens == USAGE["completion_tokens"]
    assert last.text == ""
    assert server.seen[0].body["stream_options"] == {"include_usage": True}


def test_chat_takes_messages_or_a_bare_text(ask: Asker, server: WireServer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert ask.call("chat", messages).text == TEXT
    assert ask.call("chat", "Hi").choices[0].message.role == "assistant"
    assert [seen.body["messages"] for seen in server.seen] == [messages, messages[1:]]


def test_embed_gives_a_matrix_in_the_order_of_the_inputs(ask: Asker, server: WireServer) -> None:
    embeddings = ask.call("embed", ["a", "bcd"], pooling="mean", layer=2)
    assert embeddings.matrix.dtype == np.float32
    np.testing.assert_array_equal(embeddings.matrix, [[1, 0], [3, 1]])
    assert embeddings.vectors == [(1.0, 0.0), (3.0, 1.0)]
    sent = server.seen[0].body
    assert (sent["encoding_format"], sent["pooling"], sent["layer"]) == ("base64", "mean", 2)


def test_tokens_models_version_and_capabilities(ask: Asker) -> None:
    tokens = ask.call("tokenize", "fox")
    assert tokens.ids == [102, 111, 120]
    assert tokens.strings == ["f", "o", "x"]
    assert len(tokens) == 3
    assert ask.call("detokenize", tokens.ids) == "fox"
    [model] = ask.call("models")
    assert (model.id, model.max_model_len) == ("toy", 512)
    assert ask.call("version") == "0.1.0"
    assert ask.call("capabilities") == {"points": ["attn.hook_pattern"]}


def test_calls_that_choose_a_model_name_it(ask: Asker, server: WireServer) -> None:
    server.will(Reply(body={"kind": "encoder"}), Reply(), Reply())
    assert ask.call("capabilities", model="org/a&b") == {"kind": "encoder"}
    ask.call("load_lora", "tuned", "folder", model="chat")
    ask.call("load_lora", "tuned", "folder")
    assert server.paths[0] == "/v1/capabilities?model=org%2Fa%26b"
    assert [seen.body.get("base_model_name") for seen in server.seen[1:]] == ["chat", None]


def test_health_has_the_state_of_each_model(ask: Asker, server: WireServer) -> None:
    server.will(Reply(body={"ready": True, "reason": "ready", "models": {"chat": "loaded", "embed": "failed"}}))
    assert ask.call("health").models == {"chat": "loaded", "embed": "failed"}


def test_health_tells_why_the_server_is_not_ready_instead_of_raising(ask: Asker, server: WireServer) -> None:
    assert ask.call("health") == Health(ready=True, reason="ready")
    server.will(error(503, "loading 3 of 10", {"Retry-After": "30"}))
    health = ask.call("health")
    assert (health.ready, health.reason) == (False, "loading 3 of 10")
    assert len(server.seen) == 2, "not ready is an answer: it is not asked for again"


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_a_client_shows_its_address_and_no_key(client_class: type[Client | AsyncClient]) -> None:
    client = client_class("http://127.0.0.1:8000/v1", api_key="sk-secret", model="toy")
    assert repr(client) == f"{client_class.__name__}('http://127.0.0.1:8000', model='toy')"
    assert "sk-secret" not in repr(vars(client))
    assert repr(Client("http://x")) == "Client('http://x')"


def test_slices_and_a_single_intervention_are_sent_as_the_server_reads_them(ask: Asker, server: WireServer) -> None:
    change = zero("attn.hook_z", layer=slice(1, None), head=3)
    one(server, causal(2, 3))
    ask.call(
        "attention", "x", layers=slice(0, 2), heads=slice(-2, None), key_positions=slice(None), interventions=change
    )
    assert server.seen[-1].body == {
        "input": "x",
        "layers": "0:2",
        "heads": "-2:",
        "key_positions": "all",
        "interventions": [{"point": "attn.hook_z", "op": "zero", "layer": "1:", "head": 3}],
    }
    with pytest.raises(TypeError, match="has steps"):
        ask.call("attention", "x", layers=slice(0, 4, 2))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_base_url_may_end_in_v1_or_not(server: WireServer, suffix: str) -> None:
    with Client(server.url + suffix) as client:
        client.generate("Once")
        client.tokenize("Once")
    assert server.paths == ["/v1/completions", "/tokenize"]


def test_a_base_url_below_a_path_is_kept(server: WireServer) -> None:
    with Client(server.url + "/proxy/v1") as client, pytest.raises(Exception, match="no route"):
        client.generate("Once")
    assert server.paths == ["/proxy/v1/completions"]


@pytest.mark.parametrize("base_url", ["127.0.0.1:8000", "ftp://host", "", "http://"])
def test_a_base_url_that_is_no_address_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url is"):
        Client(base_url)


def test_key_model_and_headers_go_with_each_request(server: WireServer) -> None:
    with Client(server.url, api_key="secret", model="toy") as client:
        client.generate("Once", extra_headers={"X-Trace": "7"}, extra_body={"priority": 3})
        client.generate("Once", model="other")
    first, second = server.seen
    assert first.headers["authorization"] == "Bearer secret"
    assert first.headers["x-trace"] == "7"
    assert first.headers["user-agent"].startswith("lightwell-client/")
    assert (first.body["model"], first.body["priority"], second.body["model"]) == ("toy", 3, "other")


def test_arrays_and_ranges_are_sent_as_lists_and_none_is_not_sent(client: Client, server: WireServer) -> None:
    client.generate(np.array([1, 2, 3]).tolist(), stop_token_ids=range(2), seed=int(np.int64(7)))
    client.generate(np.array([1, 2, 3]), seed=np.int64(7))
    assert [seen.body["prompt"] for seen in server.seen] == [[1, 2, 3]] * 2
    assert server.seen[0].body["stop_token_ids"] == [0, 1]
    client.generate("Once", max_tokens=None, seed=None)
    assert server.seen[2].body == {"prompt": "Once"}, "None means the server's default"


def test_a_misspelt_argument_is_refused_before_anything_is_sent(ask: Asker, server: WireServer) -> None:
    with pytest.raises(TypeError, match=r"no argument 'temprature'; known are .*temperature"):
        ask.call("generate", "Once", temprature=1)
    assert server.seen == []


def test_an_error_names_everything_the_server_said(ask: Asker, server: WireServer) -> None:
    server.will(
        error(400, "top_p is 3", {"X-Request-Id": "r-9"}, type="invalid_request_error", param="top_p", code="x")
    )
    with pytest.raises(BadRequest) as caught:
        ask.call("generate", "Once", top_p=3)
    failure = caught.value
    assert (failure.status, failure.message, failure.param, failure.code) == (400, "top_p is 3", "top_p", "x")
    assert (failure.type, failure.request_id) == ("invalid_request_error", "r-9")
    assert str(failure) == "400: top_p is 3 (request r-9)"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (502, b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (400, {"detail": "no such field"}, "no such field"),
        (422, {"detail": [{"loc": ["body"]}]}, '[{"loc": ["body"]}]'),
        (400, {"error": "plain"}, "plain"),
        (500, b"", "no message"),
        (400, [1], "[1]"),
    ],
)
def test_an_error_in_another_shape_still_has_a_message(
    client: Client, server: WireServer, status: int, body: object, message: str
) -> None:
    server.will(Reply(status=status, body=body))
    with pytest.raises(Exception, match=f"^{status}: ") as caught:
        client.generate("Once")
    assert str(caught.value) == f"{status}: {message}"


@pytest.mark.parametrize("body", [b"<html>", {"choices": []}, {"choices": [{"index": 0}]}, [], b"\xff\xfe"])
def test_a_good_status_with_a_bad_body_is_an_invalid_response(ask: Asker, server: WireServer, body: object) -> None:
    server.will(Reply(body=body))
    with pytest.raises(InvalidResponse):
        ask.call("generate", "Once")
