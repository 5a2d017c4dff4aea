"""The vectors of POST /v1/contributions on a small random checkpoint of every family: the vector of each key and head
follows the formulas, and all vectors and other additions sum to the residual stream.
"""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, points_of, stack_config
from lightwell.server.dialects.inspect.inspection import stack_of
from lightwell.server.engine.messages.request import Part
from tests.parity import ROWS
from tests.reference.contributions import Contributions
from tests.server.dialects.conftest import every_family
from tests.server.dialects.looks import TEXT, array, at_site, engine_of
from tests.server.dialects.test_looking_at_every_family import ask, exactly, parts, reading
from tests.server.serving import Site

QUERIES = [5, -1]


async def vectors_of(family: Site, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return await ask(family, "contributions", **body, vectors=True, query_positions=QUERIES, **more)


@every_family(*ROWS)
async def test_all_that_is_added_sums_to_the_residual_stream_and_to_the_logits(family: Site) -> None:
    """Compare every key and head of every layer with the formulas: the vector pattern * v W_O, its norm, and its dot
    product with the logit's direction.
    """
    config = family.model.config
    body, queries = reading(config), [5, 0, 11, -1]
    trace, weights = exactly(family, body)
    for part in parts(config):
        has_parts = config.has_head and part != "encoder" and config.altup is None
        tokens = random.sample(range(config.vocab_size), 2) if has_parts else []
        asked = {"vectors": True, "query_positions": queries, **dict(zip(("target", "versus"), tokens, strict=False))}
        entry = await ask(family, "contributions", **body, part=part, **asked)
        expected, vectors = Contributions(trace, weights, part), array(entry, "vectors")
        for place, layer in enumerate(entry["layers"]):
            truth = expected.vectors(layer)[:, queries]
            assert np.allclose(vectors[place], truth.numpy(), rtol=1e-3, atol=1e-4), (part, layer)
            assert np.allclose(array(entry, "norms")[place], truth.norm(dim=-1).numpy(), rtol=1e-3, atol=1e-4)
            if tokens:
                target, versus = (expected.logits(layer, token)[:, queries].numpy() for token in tokens)
                assert np.allclose(array(entry, "attributions")[place], target - versus, rtol=1e-3, atol=1e-4)
        assert np.abs(vectors).max() > 0.01
        additions, names = array(entry, "additions"), entry["addition_names"]
        assert len(names) == len(set(names)) == len(additions)
        kept = [not name.endswith("rounding") for name in names]
        last = expected.point("hook_resid_post", expected.config.num_layers - 1)[queries].numpy()
        assert np.allclose(vectors.sum((0, 1, 3)) + additions[kept].sum(0), last, atol=1e-4)
        assert np.allclose(array(entry, "states")[-1], last, atol=1e-4)
        assert entry["stream_difference"] < 1e-4
        if tokens:
            check_components(entry, config)


def check_components(entry: dict[str, Any], config: ModelConfig) -> None:
    """Check that the components sum to the difference of two logits, and the parts of keys to the heads' components."""
    components = dict(zip(entry["component_names"], array(entry, "components").T, strict=True))
    assert entry["difference"] < 2e-4
    assert np.allclose(sum(components.values()), entry["logits"], atol=1e-4)
    module, prefix = ("cross_attn" if entry["part"] == "cross" else "attn"), full_name(config, "decoder", "", None)
    by_head = array(entry, "attributions").sum(-1)
    for place, head in np.ndindex(by_head.shape[:2]):
        name = f"{prefix}blocks.{entry['layers'][place]}.{module}.head.{head}"
        assert np.allclose(by_head[place, head], components[name], atol=1e-4)


@every_family("llama-gqa", "gpt2", "gemma2", "gpt_neox", "bert", "t5")
async def test_what_is_added_is_named_by_where_it_comes_from(family: Site) -> None:
    """Compare every addition that is a point with that point, and every change of a norm with the stream around it."""
    body = reading(family.model.config)
    trace, weights = exactly(family, body)
    for part in parts(family.model.config):
        entry, own = await vectors_of(family, body, part=part), Contributions(trace, weights, part)
        for name, vectors in zip(entry["addition_names"], array(entry, "additions"), strict=True):
            point = name.rpartition(".")[2]
            if point.startswith("hook_"):
                assert np.allclose(vectors, trace.points[name][QUERIES].numpy(), atol=1e-4), name
            elif point == "b_O":
                assert np.allclose(vectors, bias_of(own, name), atol=1e-5), name
            elif point == "change":
                assert np.allclose(vectors, change_of(own, name), atol=1e-4), name
            else:
                assert point == "rounding"
                assert np.abs(vectors).max() < 1e-4


def bias_of(own: Contributions, name: str) -> Any:
    """Return the bias of an attention's output, `[query, d_model]`, for families without a norm after it."""
    layer, output = name.split(".")[-3], "cross_out" if ".cross_attn." in name else "attn_out"
    return own.weights[f"{own.prefix}layers.{layer}.{output}.bias"].expand(len(QUERIES), -1).numpy()


def change_of(own: Contributions, name: str) -> Any:
    """Return the difference between a sum and the output of the norm after it, for BERT."""
    layer, norm = int(name.split(".")[1]), name.split(".")[2]
    before, added, after = {
        "ln1": ("hook_resid_pre", "hook_attn_out", "hook_resid_mid"),
        "ln2": ("hook_resid_mid", "hook_mlp_out", "hook_resid_post"),
    }[norm]
    points = [own.point(point, layer)[QUERIES] for point in (before, added, after)]
    return (points[2] - points[0] - points[1]).numpy()


@every_family("llama-gqa", "gemma3", "t5")
async def test_sums_over_axes_are_the_vectors_summed(family: Site) -> None:
    body = reading(family.model.config)
    axes = ("layer", "head", "query", "key", "d_model")
    for part in parts(family.model.config):
        whole = array(await vectors_of(family, body, part=part), "vectors")
        for count in (1, 2, 3):
            for sum_over in itertools.combinations(("layer", "head", "key"), count):
                entry = await vectors_of(family, body, part=part, sum_over=sum_over)
                expected = whole.sum(tuple(axes.index(axis) for axis in sum_over))
                assert entry["arrays"]["vectors"]["axes"] == [axis for axis in axes if axis not in sum_over]
                assert np.allclose(array(entry, "vectors"), expected, atol=1e-5)


@every_family("llama-gqa", "bert", "gemma3")
async def test_what_was_not_asked_for_is_a_part_of_its_own(family: Site) -> None:
    """Check the sum for a selection of layers, heads and keys, and the entry that holds the rest."""
    config = family.model.config
    body = reading(config)
    trace, weights = exactly(family, body)
    entry = await vectors_of(family, body, layers=[-1], heads=[2, 0], key_positions=[3, 1, 4])
    (part,) = parts(config)
    layer, own = config.num_layers - 1, Contributions(trace, weights, part)
    names, additions = entry["addition_names"], array(entry, "additions")
    assert "blocks.0.hook_attn_out" in names
    rest = own.point("hook_attn_out", layer)[QUERIES] - own.vectors(layer)[[2, 0]][:, QUERIES][:, :, [3, 1, 4]].sum(
        (0, 2)
    )
    for name in names:
        if name == f"blocks.{layer}.attn.b_O":
            rest = rest - torch.from_numpy(additions[names.index(name)])
    assert np.allclose(additions[names.index(f"blocks.{layer}.attn.rest")], rest.numpy(), atol=1e-4)
    assert np.allclose(array(entry, "vectors").sum((0, 1, 3)) + additions.sum(0), array(entry, "states")[-1], atol=1e-4)


def changes_of(config: ModelConfig, part: Part, layer: int) -> dict[str, list[dict[str, Any]]]:
    """Return interventions by name, for a layer with attention: on its head 1, its outputs and its residual stream."""
    stack = stack_of(part)
    of = stack_config(config, stack)
    module, output = ("cross_attn", "hook_cross_attn_out") if part == "cross" else ("attn", "hook_attn_out")
    numbers = np.random.default_rng().normal(size=of.hidden_size).tolist()

    def to(point: str, op: str, **more: Any) -> dict[str, Any]:
        return {"point": full_name(config, stack, point, layer), "op": op, **more}

    half: dict[str, Any] = {"op": "scale", "value": 0.5}
    own: dict[str, Any] = {"head": 1, "positions": [5]}
    found = {
        "zeroed": [to(f"{module}.hook_z", "zero", head=1)],
        "result zeroed": [to(f"{module}.hook_result", "zero", head=1)],
        "scaled": [to(f"{module}.hook_z", **half, **own), to(output, **half, positions=[5])],
        "mean": [to(f"{module}.hook_z", "mean", head=1)],
        "replaced": [to(f"{module}.hook_z", "patch", value=numbers[: of.at(layer).head_dim], **own)],
        "result": [to(f"{module}.hook_result", "add", value=numbers, **own), to(output, **half)],
        "mlp zeroed": [to("hook_mlp_out", "zero")],
        "output": [to(output, "patch", value=numbers, positions=[5])],
    }
    stream = random.choice([point.name for point in points_of(config, stack) if point.name.startswith("hook_resid")])
    return found | {stream: [to(stream, "patch", value=numbers, positions=[5])]}


@every_family(
    *("llama-gqa", "granite", "gemma2", "olmo2", "gpt_neox", "gpt_oss", "qwen3_5", "lfm2", "gemma3n", "gemma4-e2b"),
    *("gpt2", "opt-post", "bert", "t5", "bart"),
)
async def test_a_change_is_in_what_is_added_and_never_in_rounding(family: Site) -> None:
    """Check that the additions of a changed pass sum to the changed stream and to the changed logits."""
    config, body = family.model.config, reading(family.model.config)
    for part in parts(config):
        own, prefix = stack_config(config, stack_of(part)), full_name(config, stack_of(part), "", None)
        has_logits = config.has_head and part != "encoder" and config.altup is None
        asked: dict[str, Any] = {"target": random.randrange(config.vocab_size)} if has_logits else {}
        layer = random.choice(own.attention_layers)
        for what, changes in changes_of(config, part, layer).items():
            body["interventions"] = changes
            entry = await vectors_of(family, body, part=part, **asked)
            wanted = [f"{prefix}blocks.{own.num_layers - 1}.hook_resid_post", *([f"{prefix}logits"] if asked else [])]
            traced = await ask(family, "trace", **body, points=wanted, positions=QUERIES)
            last, *logits = (np.array(traced["points"][name]["data"], float) for name in wanted)
            vectors, names = array(entry, "vectors"), entry["addition_names"]
            kept = [not name.endswith("rounding") for name in names]
            assert np.allclose(vectors.sum((0, 1, 3)) + array(entry, "additions")[kept].sum(0), last, atol=1e-4), what
            assert entry["stream_difference"] < 1e-4, what
            assert len(names) == len(set(names))
            of_head = vectors[entry["layers"].index(layer), 1]
            if what.endswith("zeroed") and what != "mlp zeroed":
                assert not of_head.any()
                assert not array(entry, "norms")[entry["layers"].index(layer), 1].any()
            if asked:
                check_logits(entry, logits[0][:, asked["target"]], config, what)


def check_logits(entry: dict[str, Any], logits: Any, config: ModelConfig, what: str) -> None:
    """Check that the components of a changed pass sum to its logits, and the parts of keys to the heads' components."""
    names, components = entry["component_names"], array(entry, "components")
    cap, sums = config.final_logit_softcap, components.sum(-1)
    assert len(names) == len(set(names))
    assert np.allclose(sums if cap is None else cap * np.tanh(sums / cap), logits, atol=2e-4), what
    assert entry["difference"] < 2e-4, what
    module, prefix = ("cross_attn" if entry["part"] == "cross" else "attn"), full_name(config, "decoder", "", None)
    for (place, head), added in np.ndenumerate(array(entry, "attributions").sum(-1)[..., 0]):
        column = names.index(f"{prefix}blocks.{entry['layers'][place]}.{module}.head.{head}")
        if what not in ("mean", "replaced"):  # there the head's output does not come from keys
            assert np.isclose(added, components[0, column], atol=1e-4), what


async def test_sums_are_of_vectors_and_large_answers_are_refused(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of(), max_response_bytes=5_000) as at:
        error = await at.error("/v1/contributions", {"input": TEXT, "sum_over": ["head"]}, 400)
        assert (error["param"], "set vectors too" in error["message"]) == ("sum_over", True)
        error = await at.error("/v1/contributions", {"input": TEXT, "vectors": True}, 413)
        assert (error["code"], "sum_over" in error["message"]) == ("answer_too_large", True)
        assert (await at.post("/v1/contributions", {"input": TEXT})).status_code == 200
