"""GET /v1/capabilities: routes follow it, and reject unsupported requests with the reason that it gives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.generation.supported_routes import JUDGEMENTS
from tests.server.dialects.routes import ROUTES, refuses
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, site, tiny_config, tiny_encoder, tiny_encoder_decoder, tiny_masked_lm

CONFIGS = [tiny_config(), tiny_encoder(), tiny_encoder_decoder()]
LABELS = replace(tiny_config(), architecture="GPT2ForSequenceClassification", has_head=False)
FILLS_IN = tiny_masked_lm()
WRITING = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/decisions", "/v1/systemone", "/v1/messages",
)  # fmt: skip
BODIES = {route: ROUTES[route] for route in WRITING}


async def capabilities(at: Site) -> Any:
    return (await at.http.get("/v1/capabilities")).json()


@pytest.mark.parametrize(
    ("config", "stacks", "parts"),
    [
        (CONFIGS[0], ["decoder"], ["decoder"]),
        (CONFIGS[1], ["encoder"], ["encoder"]),
        (CONFIGS[2], ["encoder", "decoder"], ["encoder", "decoder", "cross"]),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
async def test_kind_stacks_and_parts_are_told(config: Any, stacks: list[str], parts: list[str], tmp_path: Path) -> None:
    async with site(tmp_path, config=config) as at:
        told = await capabilities(at)
    assert (told["kind"], told["num_layers"], told["num_heads"]) == (config.kind, 3, 4)
    assert (list(told["stacks"]), told["attention"]["parts"]) == (stacks, parts)
    assert told["attention"]["with_generation"] == (config.kind != "encoder")
    assert told["batch_invariant"] is True
    assert told["quantize"] == "none"


@pytest.mark.parametrize(
    ("kernels", "level", "arithmetic", "ranks", "same_bits"),
    [
        ("native", "avx512_bf16", "float32", 1, "every_level"),
        ("native", "avx512_bf16", "bf16-dot", 1, "same_level"),
        ("native", "avx2", "float32", 2, None),  # ranks that hold a model together promise no bits across CPUs
        ("torch", None, None, 1, None),
    ],
)
async def test_kernels_are_told_and_how_far_they_promise_the_same_bits(
    kernels: str, level: str | None, arithmetic: str | None, ranks: int, same_bits: str | None, tmp_path: Path
) -> None:
    info = replace(INFO, kernels=kernels, kernel_level=level, kernel_arithmetic=arithmetic)
    async with site(tmp_path, FakeEngine(engine_info=info), tensor_parallel=ranks) as at:
        told = await capabilities(at)
    assert (told["kernels"], told["kernel_level"], told["kernel_arithmetic"]) == (kernels, level, arithmetic)
    assert told["same_bits_across"] == same_bits


async def test_weights_that_are_stored_quantised_are_counted(tmp_path: Path) -> None:
    info = replace(INFO, num_matrices=9, num_grouped=8, grouped_bytes=4096)
    config = replace(tiny_config(), stored_as="awq")
    expected = {"format": "awq", "num_matrices": 9, "num_kept": 8, "kept_bytes": 4096}
    async with site(tmp_path, FakeEngine(engine_info=info), config=config) as at:
        assert (await capabilities(at))["stored_weights"] == expected
    async with site(tmp_path, FakeEngine(engine_info=info), config=config, quantize="int8") as at:
        assert (await capabilities(at))["stored_weights"] == expected | {"num_kept": 0, "kept_bytes": 0}
    async with site(tmp_path) as at:
        assert (await capabilities(at))["stored_weights"] is None


async def test_the_stacks_of_an_encoder_decoder_have_their_own_sizes(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        told = await capabilities(at)
    encoder, decoder = told["stacks"]["encoder"], told["stacks"]["decoder"]
    assert (encoder["num_layers"], encoder["num_heads"], encoder["max_model_len"]) == (2, 2, 40)
    assert (decoder["num_layers"], decoder["num_heads"], decoder["max_model_len"]) == (3, 4, 64)
    assert told["embeddings"]["layers"] == 3


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
async def test_every_point_it_names_can_be_traced_and_has_that_shape(config: Any, tmp_path: Path) -> None:
    async with site(tmp_path, config=config) as at:
        points = {point["name"].replace("{layer}", "1"): point for point in (await capabilities(at))["points"]}
        answer = await at.post("/v1/trace", {"input": "abc", "points": list(points), "encoding_format": "base64"})
    traced = answer.json()["data"][0]["points"]
    assert list(traced) == list(points)
    for name, point in points.items():
        assert traced[name]["axes"] == point["axes"]
        pairs = zip(point["shape"], traced[name]["shape"], strict=True)
        assert all(told in (None, found) for told, found in pairs), name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
async def test_the_other_names_of_a_point_mean_it(config: Any, tmp_path: Path) -> None:
    async with site(tmp_path, config=config) as at:
        points = (await capabilities(at))["points"]
        named = [(other, point) for point in points for other in point["other_names"]]
        assert {"embed.hook_out", "hook_out", "attn.q.hook_out"} <= {other for other, _ in named}
        for other, point in named:
            prefix = f"{point['stack']}." if config.kind == "encoder-decoder" else ""
            block = "blocks.1." if "{layer}" in point["name"] else ""
            answer = await at.post("/v1/trace", {"input": "abc", "points": [f"{prefix}{block}{other}"]})
            assert list(answer.json()["data"][0]["points"]) == [point["name"].replace("{layer}", "1")], other


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
async def test_a_point_can_be_changed_exactly_when_it_says_so(config: Any, tmp_path: Path) -> None:
    body = {"input": "abc", "points": ["hook_embed"]}
    async with site(tmp_path, config=config) as at:
        points = (await capabilities(at))["points"]
        changes = [({"point": point["name"].replace("{layer}", "1"), "op": "zero"}, point) for point in points]
        accepted = [change for change, point in changes if point["changeable"]]
        assert (await at.post("/v1/trace", {**body, "interventions": accepted})).status_code == 200
        refused = [change for change, point in changes if not point["changeable"]]
        assert refused
        for change in refused:
            await refuses(at, "/v1/trace", {**body, "interventions": [change]}, "can be read but not changed")


@pytest.mark.parametrize(
    "config", [CONFIGS[1], FILLS_IN, LABELS], ids=["without a head", "with one", "a decoder without one"]
)
async def test_what_writes_nothing_refuses_to_write_with_the_reason_it_told(config: Any, tmp_path: Path) -> None:
    async with site(tmp_path, config=config) as at:
        routes = (await capabilities(at))["routes"]
        for route, body in BODIES.items():
            await refuses(at, route, body, routes[route]["reason"], "/v1/embeddings")
            assert routes[route]["works"] is False
        assert at.engine.submitted == []


@pytest.mark.parametrize("route", ["/v1/next", "/v1/lens"])
async def test_an_encoder_without_a_head_says_so(route: str, tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder()) as at:
        told = (await capabilities(at))["routes"][route]
        await refuses(at, route, {"input": "x"}, told["reason"])
    async with site(tmp_path, config=FILLS_IN) as at:
        assert (await capabilities(at))["routes"][route] == {"works": True, "reason": None}
    assert "its files hold no head that fills in masked words" in told["reason"]


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2]], ids=lambda config: config.kind)
async def test_routes_that_work_answer(config: Any, tmp_path: Path) -> None:
    async with site(tmp_path, config=config) as at:
        told = (await capabilities(at))["routes"]
        for route, body in BODIES.items():
            if config.kind == "encoder-decoder" and route in JUDGEMENTS:
                assert "could not be computed once for all questions" in told[route]["reason"]
                assert (await at.post(route, body)).status_code == 400
                continue
            assert told[route] == {"works": True, "reason": None}
            assert (await at.post(route, body)).status_code == 200


async def test_chat_without_a_template_is_denied_here_and_refused_there(tmp_path: Path) -> None:
    async with site(tmp_path, template=None) as at:
        routes = (await capabilities(at))["routes"]
        for route, param in (("/v1/chat/completions", "messages"), ("/v1/responses", "input")):
            assert routes[route]["works"] is False
            assert "no chat template" in routes[route]["reason"]
            await refuses(at, route, BODIES[route], "--chat-template", code="no_chat_template", param=param)
