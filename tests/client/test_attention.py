"""attention(): arrays with their tokens and axes, from either form of the wire."""

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from lightwell_client import AttentionResult, Client, InvalidResponse
from lightwell_client._heatmap import MAX_PIXELS, heat_map_html, heat_map_png
from tests.client.conftest import Asker
from tests.client.wire_server import Reply, WireServer

Array = np.ndarray[Any, Any]
TOKENS = ["The", " <b>", "\n", "fox"]
SAFETENSORS = {"Content-Type": "application/vnd.safetensors"}


def causal(*leading: int, size: int = len(TOKENS), dtype: str = "float32") -> Array:
    """Return random rows that sum to 1 and attend only to earlier keys."""
    scores = np.random.default_rng(0).normal(size=(*leading, size, size))
    weights = np.where(np.tri(size, dtype=bool), np.exp(scores), 0)
    pattern: Array = (weights / weights.sum(-1, keepdims=True)).astype(dtype)
    return pattern


def entry(array: Array, index: int = 0, **changes: Any) -> dict[str, Any]:
    positions = list(range(len(TOKENS)))
    fields = {
        "object": "attention",
        "index": index,
        "tokens": TOKENS,
        "token_ids": [7, 8, 9, 10],
        "offsets": [[0, 3], [3, 7], [7, 8], [8, 11]],
        "layers": [0, 5],
        "heads": [1, 2, 7],
        "query_positions": positions,
        "key_positions": positions,
        "axes": ["layer", "head", "query", "key"],
        "shape": list(array.shape),
        "dtype": array.dtype.name,
    }
    return fields | changes


def as_safetensors(*answers: tuple[dict[str, Any], dict[str, Array]], **head: Any) -> Reply:
    head = {"usage": {"prompt_tokens": 4, "total_tokens": 4}, **head}
    metadata = {"object": "list", "model": "toy", **{name: json.dumps(value) for name, value in head.items()}}
    metadata |= {f"attention.{fields['index']}": json.dumps(fields) for fields, _ in answers}
    tensors = {f"{name}.{fields['index']}": array for fields, arrays in answers for name, array in arrays.items()}
    return Reply(body=save(tensors, metadata=metadata), headers=SAFETENSORS)


def one(server: WireServer, array: Array, arrays: dict[str, Array] | None = None, **changes: Any) -> None:
    server.will(as_safetensors((entry(array, **changes), arrays or {"attention": array})))


def answered(client: Client, server: WireServer, array: Array, **changes: Any) -> AttentionResult:
    """Return the client's result for an answer with this array."""
    one(server, array, **changes)
    return client.attention("x")


def test_one_text_gives_one_result_with_everything_attached(ask: Asker, server: WireServer) -> None:
    pattern = causal(2, 3)
    one(server, pattern)
    result = ask.call("attention", "The <b>\nfox", layers=[0, 5], heads=(1, 2, 7))
    assert isinstance(result, AttentionResult)
    assert result.attention.tobytes() == pattern.tobytes()
    assert result.shape == (2, 3, 4, 4)
    assert (result.layers, result.heads, result.tokens) == ((0, 5), (1, 2, 7), tuple(TOKENS))
    assert (result.axes, result.token_ids) == (("layer", "head", "query", "key"), (7, 8, 9, 10))
    assert result.offsets == ((0, 3), (3, 7), (7, 8), (8, 11))
    assert (result.model, result.usage.prompt_tokens if result.usage else None) == ("toy", 4)
    assert server.seen[0].headers["accept"].startswith("application/vnd.safetensors")
    assert server.seen[0].body == {"input": "The <b>\nfox", "layers": [0, 5], "heads": [1, 2, 7]}


def test_many_texts_give_a_list_in_their_order_each_at_its_own_length(ask: Asker, server: WireServer) -> None:
    long, short = causal(2, 3), causal(2, 3, size=2)
    positions = {"query_positions": [0, 1], "key_positions": [0, 1], "tokens": TOKENS[:2], "token_ids": [7, 8]}
    server.will(
        as_safetensors((entry(short, 1, **positions), {"attention": short}), (entry(long), {"attention": long}))
    )
    first, second = ask.call("attention", ["a long one", "short"])
    assert (first.shape[-1], second.shape[-1]) == (4, 2)


@pytest.mark.parametrize(
    ("given_input", "is_list"),
    [
        ("text", False),
        ([1, 2], False),
        (np.array([1, 2]), False),
        ([{"role": "user", "content": "Hi"}], False),
        (["text"], True),
        ([[1, 2]], True),
        (np.array([[1, 2]]), True),
    ],
)
def test_the_form_of_the_input_decides_the_form_of_the_answer(
    client: Client, server: WireServer, given_input: Any, is_list: bool
) -> None:
    one(server, causal(2, 3))
    assert isinstance(client.attention(given_input), list) == is_list


def test_an_answer_for_fewer_inputs_than_were_sent_is_refused(client: Client, server: WireServer) -> None:
    one(server, causal(2, 3))
    with pytest.raises(InvalidResponse, match=r"2 inputs was requested; \[0\] came"):
        client.attention(["a", "b"])


def test_a_map_is_chosen_by_the_models_own_layer_and_head_numbers(client: Client, server: WireServer) -> None:
    pattern = causal(2, 3)
    result = answered(client, server, pattern)
    np.testing.assert_array_equal(result.matrix(5, 7), pattern[1, 2])
    with pytest.raises(ValueError, match=r"layer is 1; this answer has \[0, 5\]"):
        result.matrix(1, 7)
    with pytest.raises(ValueError, match=r"3 heads, \[1, 2, 7\]: name one head"):
        result.matrix(layer=5)


def test_pairs_and_reduced_heads_are_chosen_too(client: Client, server: WireServer) -> None:
    pattern = causal(2)
    pairs = {"pairs": [[0, 1], [5, 2]], "axes": ["pair", "query", "key"], "layers": None, "heads": None}
    result = answered(client, server, pattern, **pairs)
    np.testing.assert_array_equal(result.matrix(5), pattern[1])
    assert (result.layers, result.heads) == ((0, 5), (1, 2))
    with pytest.raises(ValueError, match="choose 0 of the pairs"):
        result.matrix(0, 2)
    reduced = answered(client, server, pattern, axes=["layer", "query", "key"], heads=None)
    np.testing.assert_array_equal(reduced.matrix(5), pattern[1])
    with pytest.raises(ValueError, match="reduced over heads"):
        reduced.matrix(5, 2)


def test_the_k_largest_keys_come_as_values_with_their_positions(client: Client, server: WireServer) -> None:
    values = np.array([[[[1.0, 0.0], [0.7, 0.3]]]], dtype="float16")
    indices = np.array([[[[0, -1], [3, 1]]]], dtype="int32")
    changes = {"axes": ["layer", "head", "query", "k"], "layers": [0], "heads": [1], "query_positions": [0, 3]}
    result = answered(client, server, values, arrays={"values": values, "indices": indices}, **changes)
    assert result.indices is not None
    np.testing.assert_array_equal(result.indices, indices)
    np.testing.assert_array_equal(result.attention, values)
    np.testing.assert_array_equal(result.matrix(), np.array([[1, 0, 0, 0], [0, 0.3, 0, 0.7]], dtype="float16"))
    assert result._repr_html_().count("<img") == 1


def test_json_gives_the_same_numbers_when_a_server_sends_that(client: Client, server: WireServer) -> None:
    scores = np.where(np.tri(4, dtype=bool), causal(2, 3), -np.inf).astype("float32")
    nested = [[[[None if np.isinf(x) else float(x) for x in row] for row in m] for m in head] for head in scores]
    packed = base64.b64encode(scores.tobytes()).decode()
    for attention in (nested, packed):
        body = {"object": "list", "model": "toy", "data": [entry(scores) | {"attention": attention}]}
        server.will(Reply(body=body))
        result = client.attention("x", kind="scores")
        np.testing.assert_array_equal(result.attention, scores)
        assert (result.attention.dtype.name, result.kind) == ("float32", "scores")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"not safetensors", headers=SAFETENSORS),
        Reply(body={"data": []}),
        Reply(body={"data": [{"index": 0}]}),
        Reply(body=[]),
        Reply(body={"data": [entry(causal(2, 3)) | {"attention": [[1], [2, 3]]}]}),
        Reply(body={"data": [entry(causal(2, 3)) | {"attention": "????"}]}),
        Reply(body={"data": [entry(causal(2, 3)) | {"attention": "AAAA"}]}),
        Reply(body=save({"attention.0": causal(2, 3)}), headers=SAFETENSORS),
        as_safetensors((entry(causal(2, 3)), {"other": causal(2, 3)})),
        as_safetensors((entry(causal(2, 3), axes=["layer", "query", "key"]), {"attention": causal(2, 3)})),
        as_safetensors((entry(causal(2, 3), shape=[2, 3, 4, 5]), {"attention": causal(2, 3)})),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(ask: Asker, server: WireServer, reply: Reply) -> None:
    server.will(reply)
    with pytest.raises(InvalidResponse):
        ask.call("attention", "x")


def test_a_notebook_shows_every_map_with_harmless_labels(client: Client, server: WireServer) -> None:
    result = answered(client, server, causal(2, 3))
    assert len(repr(result)) < 300
    page = result._repr_html_()
    assert page.count("data:image/png;base64,") == 6
    assert "layer 5, head 7" in page
    assert "<b>" not in page
    assert "·&lt;b&gt;" in page
    assert "⏎" in page


def test_a_notebook_is_not_flooded(client: Client, server: WireServer) -> None:
    numbers = list(range(12))
    page = answered(client, server, causal(12, 12), layers=numbers, heads=numbers)._repr_html_()
    assert page.count("<img") == 64
    assert "64 of 144 maps" in page


def test_columns_put_the_keys_at_the_rows_of_the_picture(client: Client, server: WireServer) -> None:
    pattern = causal(1, 1)[:, :, 3:].swapaxes(-1, -2).copy()
    columns = {"axes": ["layer", "head", "key", "query"], "query_positions": [3]}
    result = answered(client, server, pattern, layers=[0], heads=[0], **columns)
    assert (result.query_labels, result.key_labels) == (["fox"], TOKENS)
    assert decode_png(result.png()).shape == (4, 1)


def test_labels_are_the_keys_own_tokens_and_numbers_of_a_resized_map(client: Client, server: WireServer) -> None:
    assert ">1</div>" in answered(client, server, causal(2, 3, size=2))._repr_html_()
    keys = {"key_tokens": ["Der", "Fuchs"], "key_token_ids": [1, 2], "key_positions": [0, 1]}
    result = answered(client, server, causal(2, 3)[..., :2].copy(), **keys)
    assert (result.key_labels, result.query_labels) == (["Der", "Fuchs"], TOKENS)


def test_negative_numbers_count_from_the_models_end(client: Client, server: WireServer) -> None:
    pattern = causal(2, 3)
    sizes = {"decoder": {"num_layers": 6, "num_heads": 8, "num_kv_heads": 8}}
    told = as_safetensors((entry(pattern, part="decoder"), {"attention": pattern}), stacks=sizes)
    paired = entry(pattern[0], pairs=[[0, 1], [5, 7], [5, 2]], axes=["pair", "query", "key"], part="decoder")
    server.will(
        told,
        as_safetensors((paired, {"attention": pattern[0]}), stacks=sizes),
        as_safetensors((entry(pattern), {"attention": pattern})),
    )
    result = client.attention("x")
    np.testing.assert_array_equal(result.matrix(layer=-1, head=-1), pattern[1, 2])
    np.testing.assert_array_equal(result.matrix(layer=-6, head=-6), pattern[0, 1])
    with pytest.raises(ValueError, match=r"layer is -2 \(4\); this answer has \[0, 5\]"):
        result.matrix(layer=-2, head=1)
    np.testing.assert_array_equal(client.attention("x").matrix(-1, -6), pattern[0, 2])
    with pytest.raises(ValueError, match="did not report their number"):  # a server of another version
        client.attention("x").matrix(-1, 1)


def decode_png(content: bytes) -> Array:
    """Return palette indices of an indexed PNG without filters; check each chunk's sum."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(content):
        [length] = struct.unpack(">I", content[place : place + 4])
        body = content[place + 4 : place + 8 + length]
        assert struct.unpack(">I", content[place + 8 + length : place + 12 + length]) == (zlib.crc32(body),)
        chunks[body[:4]] = body[4:]
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour, len(chunks[b"PLTE"])) == (8, 3, 768)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "u1").reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:]


def test_darker_is_more_and_what_is_masked_stays_white() -> None:
    pixels = decode_png(heat_map_png(np.array([[0.0, 0.5, 1.0], [-np.inf, np.nan, 0.25]])))
    np.testing.assert_array_equal(pixels, [[1, 128, 255], [0, 0, 65]])


def test_numbers_with_signs_are_palest_at_0_and_keep_their_peaks() -> None:
    pixels = decode_png(heat_map_png(np.array([[-2.0, 0.0, 1.0, np.nan]]), signed=True))
    np.testing.assert_array_equal(pixels, [[1, 128, 191, 0]])
    wide = np.zeros((1, 2 * MAX_PIXELS))
    wide[0, 10:12] = -3, 1
    assert decode_png(heat_map_png(wide, signed=True))[0, 5] == 1


@given(hnp.arrays(st.sampled_from(["f4", "f2", "u1"]), hnp.array_shapes(min_dims=2, max_dims=2, max_side=5)))
def test_any_matrix_can_be_drawn(matrix: Array) -> None:
    assert decode_png(heat_map_png(matrix)).shape == matrix.shape
    assert "<img" in heat_map_html(matrix, ["r"] * matrix.shape[0], ["c"] * matrix.shape[1], "title")


def test_a_large_map_is_drawn_smaller_and_keeps_its_peaks() -> None:
    matrix = np.zeros((2 * MAX_PIXELS + 1, 3), dtype="f4")
    matrix[77, 2] = 1
    pixels = decode_png(heat_map_png(matrix))
    assert pixels.shape == (-(-matrix.shape[0] // 3), 3)
    assert pixels[77 // 3, 2] == 255


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 2, 2)])
def test_what_is_no_matrix_cannot_be_drawn(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a heat map needs"):
        heat_map_png(np.zeros(shape))
