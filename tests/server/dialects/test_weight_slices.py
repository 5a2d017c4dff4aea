"""The weights over HTTP: every name, any slice in any format, the limit of the size, and the required keys."""

import io
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from server.config.auth.keys import hash_of
from tests.server.dialects.test_weights import array, entry, every, get, loaded
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, error_of, site


async def numbers(at: Site, name: str, **query: Any) -> np.ndarray:
    return array(entry(await get(at, f"weights/{name}", **query)), "weights")


async def test_the_list_names_every_weight_and_each_is_there(at: Site) -> None:
    told = (await get(at, "weights")).json()
    names = [each["name"] for each in told["data"]]
    assert names[0] == "embed.W_E"
    assert names[-1] == "unembed.W_U"
    assert told["not_listed"] == []
    assert sum(np.prod(each["shape"]) for each in told["data"] if each["tied_to"] is None) == sum(
        weight.size for weight in loaded(at).values()
    )
    for each in told["data"]:
        found = entry(await get(at, f"weights/{each['name']}"))
        assert found["arrays"]["weights"]["axes"] == each["axes"]
        assert found["arrays"]["weights"]["shape"] == each["shape"] == found["whole_shape"]
        assert each["stored"] == "float32"


@every("llama-gqa", "bert", "bart")
async def test_slices_are_those_of_the_checkpoint(at: Site) -> None:
    config, weights = at.model.config, loaded(at)
    d, heads, size = config.hidden_size, config.num_heads, config.head_dim
    q = weights["layers.1.qkv.weight"][: heads * size]
    head = await numbers(at, "W_Q", layer=1, head=2)
    np.testing.assert_array_equal(head, q[2 * size : 3 * size].T)
    np.testing.assert_array_equal(await numbers(at, "W_Q", layer=-1, head=-1, rows="0:3"), q[-size:].T[:3])
    out = weights["layers.1.attn_out.weight"]
    some = await numbers(at, "attn.W_O", layer=1, head=1, rows="-1,0", columns="5:9,2")
    np.testing.assert_array_equal(some, out.T[size : 2 * size][[-1, 0]][:, [5, 6, 7, 8, 2]])
    rows = await numbers(at, "W_E", rows="7,9:12")
    np.testing.assert_array_equal(rows, weights["embed.weight"][[7, 9, 10, 11]])
    assert rows.shape == (4, d)


@every("bert")
async def test_vectors_have_rows_alone_each_heads_too(at: Site) -> None:
    config, weights = at.model.config, loaded(at)
    values = weights["layers.0.qkv.bias"][-config.num_heads * config.head_dim :].reshape(config.num_heads, -1)
    np.testing.assert_array_equal(await numbers(at, "b_V", layer=0, rows="1:3"), values[:, 1:3])
    np.testing.assert_array_equal(await numbers(at, "b_V", layer=0, head=1), values[1])
    gain = weights["layers.0.attn_norm.weight"]
    np.testing.assert_array_equal(await numbers(at, "blocks.0.ln1.w", rows="-2:"), gain[-2:])
    refused = error_of(await get(at, "weights/blocks.0.ln1.w", columns="0"))
    assert "is a vector, and has only rows" in refused["message"]


async def test_the_same_numbers_come_as_npy_and_as_safetensors(at: Site) -> None:
    path = "/v1/models/org/tiny/weights/W_K?layer=0&head=0"
    plain = array(entry(await at.http.get(path)), "weights")
    as_npy = await at.http.get(path, headers={"Accept": "application/x-npy"})
    np.testing.assert_array_equal(np.load(io.BytesIO(as_npy.content)), plain)
    as_safetensors = await at.http.get(path, headers={"Accept": "application/vnd.safetensors"})
    np.testing.assert_array_equal(load(as_safetensors.content)["0/weights"], plain)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("W_q?layer=0", "name: layer 0 has no weight 'W_q'; near ones are"),
        ("W_Q", "name a layer from 0 to"),
        ("W_Q?layer=99", "layer: there is no layer 99"),
        ("W_Q?layer=0&head=99", "head: there is no head 99"),
        ("W_E?head=0", "head: embed.W_E has no heads"),
        ("W_E?rows=1,x", "rows: 'x' is none; "),
        ("W_E?rows=3:3", "rows: '3:3' chooses none of"),
        ("W_E?rows=1,1", "rows: row 1 is given twice"),
        ("W_E?columns=9999", "columns: there is no column 9999"),
        ("W_E?rows=1&rows=2", "rows: given 2 times"),
        ("W_E?colour=red", "colour"),
    ],
)
async def test_what_is_wrong_is_named(at: Site, path: str, told: str) -> None:
    answer = await at.http.get(f"/v1/models/org/tiny/weights/{path}")
    assert answer.status_code == 400, answer.text
    assert told in error_of(answer)["message"]


async def test_ranges_that_overlap_are_refused_before_they_are_added_up(at: Site) -> None:
    rows = ",".join([":"] * 8000)
    tracemalloc.start()
    try:
        answer = await at.http.get(f"/v1/models/org/tiny/weights/W_E?rows={rows}&columns=0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "rows: row 0 is given twice in [0, 1, 2" in error_of(answer)["message"]
    assert peak < 8 * 8000 * at.model.config.vocab_size / 2, "bytes of the list of all indices"


async def test_what_is_too_large_is_refused_before_anything_runs_with_what_would_fit(at: Site, tmp_path: Path) -> None:
    engine = at.engine
    assert isinstance(engine, InlineEngine)
    d, heads, size = (
        at.model.config.hidden_size,
        at.model.config.num_heads,
        at.model.config.head_dim,
    )
    small = {"config": engine.model_config, "max_response_bytes": 14 * d * size + 500}
    async with site(tmp_path, engine, **small) as cramped:
        for name, fits in (("W_Q?layer=0", {"layer": 0, "head": 0}), ("W_E", {"rows": f"0:{size}"})):
            answer = await cramped.http.get(f"/v1/models/org/tiny/weights/{name}")
            assert answer.status_code == 413
            refused = error_of(answer)["message"]
            count = heads * d * size if "W_Q" in name else at.model.config.vocab_size * d
            assert f"about {14 * count} bytes" in refused
            assert all(f"{key}={value}" in refused for key, value in fits.items() if key != "layer")
            assert (await get(cramped, f"weights/{name.partition('?')[0]}", **fits)).status_code == 200
        assert await cramped.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 2


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def statuses(at: Site, *keys: str | None) -> list[tuple[int, int, bool]]:
    """Return for each key the status of the list and of a weight, and whether /v1/capabilities reports them."""
    found = []
    for key in keys:
        headers = {} if key is None else bearer(key)
        listing = await at.http.get("/v1/models/org/tiny/weights", headers=headers)
        one = await at.http.get("/v1/models/org/tiny/weights/W_E?rows=0", headers=headers)
        told = (await at.http.get("/v1/capabilities", headers=headers)).json()["routes"]
        works = told["/v1/models/{model_id}/weights"]["works"]
        found.append((listing.status_code, one.status_code, works))
    return found


async def test_without_keys_everybody_may_read_weights_unless_they_are_off(at: Site, tmp_path: Path) -> None:
    assert await statuses(at, None) == [(200, 200, True)]
    for access, told in (("off", "(--weights-access off)"), ("admin", "it has no keys, and so no admin")):
        options: dict[str, Any] = {"config": at.model.config, "weights_access": access}
        async with site(tmp_path, at.engine, **options) as closed:
            assert await statuses(closed, None) == [(403, 403, False)]
            answer: httpx.Response = await get(closed, "weights")
            assert told in error_of(answer)["message"]


async def test_with_keys_admins_alone_may_unless_it_is_open(at: Site, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[alice]\nhash = "{hash_of("alice")}"\n[root]\nhash = "{hash_of("root")}"\nadmin = true\n')
    options: dict[str, Any] = {"config": at.model.config, "api_key_file": file}
    async with site(tmp_path, at.engine, **options) as guarded:
        assert await statuses(guarded, "alice", "root") == [(403, 403, False), (200, 200, True)]
        refused = error_of(await guarded.http.get("/v1/models/org/tiny/weights/W_E", headers=bearer("alice")))
        assert (refused["code"], refused["type"]) == ("admin_key_needed", "permission_error")
        assert "'alice' is no admin key" in refused["message"]
        assert "--weights-access open" in refused["message"]
        assert (await guarded.http.get("/v1/models/org/tiny/weights")).status_code == 401
    async with site(tmp_path, at.engine, **options, weights_access="open") as open_to_all:
        assert await statuses(open_to_all, "alice", "root") == [(200, 200, True)] * 2
    async with site(tmp_path, at.engine, **options, weights_access="off") as closed:
        assert await statuses(closed, "root") == [(403, 403, False)]
