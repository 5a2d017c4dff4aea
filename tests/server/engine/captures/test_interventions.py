"""Interventions change the named values, in every chunk and after preemption, and no value of any other request."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lightwell.model.hooks.point_names import full_name, points_of, why_absent
from lightwell.model.hooks.point_names import stacks as stacks_of
from lightwell.model.hooks.points import BY_NAME, Stack, reads_encoder
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest, Intervention, Op
from tests.server.engine.driving import Answer, Load, alone, array, build, everything, generate, request, run

LENGTH = 12
PROMPT = tuple(range(5, 5 + LENGTH))


def trace(model: Transformer, *interventions: Intervention, prompt: tuple[int, ...] = PROMPT) -> EngineRequest:
    encoded = PROMPT if model.config.kind == "encoder-decoder" else ()
    return request(0, prompt, everything(model.config), encoded=encoded, interventions=interventions)


def changeable(model: Transformer) -> list[tuple[Stack, int | None, str]]:
    """Return (stack, layer, point) of every value that may be changed, one layer of each."""
    return [
        (stack, (1 if point.in_block else None), point.name)
        for stack in stacks_of(model.config)
        for point in points_of(model.config, stack)
        if point.changeable and why_absent(model.config, stack, point, 1 if point.in_block else None) is None
    ]


def traced_with(model: Transformer, interventions: Iterable[Intervention]) -> list[tuple[Intervention, Answer]]:
    """Return the trace of everything with each intervention, in chunks of a few tokens."""
    requests = [replace(trace(model, each), uid=uid) for uid, each in enumerate(interventions)]
    answers = run(build(model, max_num_seqs=4, max_num_batched_tokens=10), requests)
    return [(each.interventions[0], answers[each.uid]) for each in requests]


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "olmo2", "opt-post", "bert", "t5"])
def test_a_change_is_seen_where_it_stands_and_not_before(model_of: Load, name: str) -> None:
    model = model_of(name)
    before = run(build(model), [trace(model)])[0]
    interventions = []
    for stack, layer, point in changeable(model):
        if not point.endswith(("hook_attn_scores", "hook_pattern")):
            heads = (0,) if "head" in point or point.endswith(("hook_q", "hook_k", "hook_v", "hook_z")) else None
            where: dict[str, Any] = {"stack": stack, "layer": layer, "point": point, "heads": heads}
            interventions.append(Intervention(op="scale", value=-2.0, positions=(7,), **where))
    for intervention, after in traced_with(model, interventions):
        capture = full_name(model.config, intervention.stack, intervention.point, intervention.layer)
        changed = before.array(capture).copy()
        changed[7 if intervention.heads is None else (7, 0)] *= -2
        assert np.allclose(after.array(capture), changed, rtol=1e-5, atol=1e-5), capture
        if intervention.stack == "decoder" and not reads_encoder(BY_NAME[intervention.point]):
            for each in everything(model.config, "decoder").points:
                if each.point.endswith(("logits", "hook_resid_post")):
                    assert (after.array(each.name)[:7] == before.array(each.name)[:7]).all(), "a change reached back"


def test_an_expert_whose_weight_is_lowered_is_routed_around(model_of: Load) -> None:
    model = model_of("qwen3_moe")
    weights, indices = (f"blocks.1.mlp.hook_expert_{name}" for name in ("weights", "indices"))
    before = run(build(model), [trace(model)])[0]
    avoided = int(before.array(indices)[0, 0])
    lowered = -np.eye(before.array(weights).shape[1], dtype=np.float32)[avoided]
    intervention = Intervention(
        stack="decoder", layer=1, point="mlp.hook_expert_weights", op="add", array=array(lowered)
    )
    after = run(build(model), [trace(model, intervention)])[0]
    expected = np.argsort(-(before.array(weights) + lowered), axis=-1, kind="stable")
    chosen = after.array(indices)
    assert (chosen == expected[:, : chosen.shape[1]]).all()
    assert avoided not in chosen


@pytest.mark.parametrize("length", [LENGTH, 128])
def test_temperature_zero_takes_the_first_of_equal_scores(model_of: Load, length: int) -> None:
    model = model_of("llama-gqa")
    prompt = tuple(5 + i % 50 for i in range(length))
    q = Intervention(stack="decoder", layer=0, point="attn.hook_q", op="set", value=0.0)
    cold = Intervention(stack="decoder", layer=0, point="attn.hook_attn_scores", op="temperature", value=0.0)
    pattern = run(build(model), [trace(model, q, cold, prompt=prompt)])[0].array("blocks.0.attn.hook_pattern")
    assert (pattern[..., 0] == 1).all()
    assert (pattern[..., 1:] == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1e-39])
def test_a_temperature_near_zero_gives_the_largest_score_all_weight(model_of: Load, temperature: float) -> None:
    """With 1e-39 float32 cannot hold the quotients."""
    model = model_of("llama-gqa")
    cold = Intervention(stack="decoder", layer=0, point="attn.hook_attn_scores", op="temperature", value=temperature)
    before, after = (run(build(model), [each])[0] for each in (trace(model), trace(model, cold)))
    largest = before.array("blocks.0.attn.hook_attn_scores").argmax(-1)
    assert (after.array("blocks.0.attn.hook_pattern") == np.eye(LENGTH)[largest]).all()


_NUMPY_OPS: dict[Op, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "set": lambda x, value: np.broadcast_to(value, x.shape),
    "scale": np.multiply,
    "add": np.add,
}


@pytest.mark.parametrize("point", ["attn.hook_z", "attn.hook_pattern", "hook_resid_post"])
def test_interventions_at_one_point_are_applied_in_their_order(model_of: Load, point: str) -> None:
    """Apply twenty interventions with overlapping heads and positions, some with one value per position."""
    model, random = model_of("llama-gqa"), np.random.default_rng(0)
    name = f"blocks.1.{point}"
    expected = run(build(model), [trace(model)])[0].array(name).copy()
    is_map, has_heads = point == "attn.hook_pattern", point.startswith("attn")
    interventions = []
    for number in range(20):
        op: Op = ("set", "scale", "add")[number % 3]
        heads = tuple(random.permutation(4)[: 1 + number % 3].tolist()) if has_heads else None
        positions = tuple(random.permutation(LENGTH)[:5].tolist()) if number % 4 else None
        of_heads = np.arange(4) if heads is None else np.array(heads)
        of_rows = np.arange(LENGTH) if positions is None else np.array(positions)
        shape = [len(of_heads), len(of_rows)] if is_map else [len(of_rows), len(of_heads)]
        shape = [*(shape if has_heads else [len(of_rows)]), expected.shape[-1]]
        if positions is None:
            shape[1 if is_map else 0] = 1
        value = random.standard_normal(shape).astype(np.float32)
        interventions.append(
            Intervention(
                stack="decoder", layer=1, point=point, op=op, array=array(value), heads=heads, positions=positions
            )
        )
        where = (of_heads, of_rows) if is_map else (of_rows, of_heads) if has_heads else (of_rows,)
        at = np.ix_(*where)
        expected[at] = _NUMPY_OPS[op](expected[at], value)
        expected = np.tril(expected) if is_map else expected
    for budget in (5, 64):
        engine = build(model, max_num_seqs=2, max_num_batched_tokens=budget)
        assert (run(engine, [trace(model, *interventions)])[0].array(name) == expected).all()


@pytest.mark.parametrize("name", ["gemma2", "bart"])
def test_maps_are_changed_in_pieces_of_rows_with_the_same_bits(
    model_of: Load, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the rows of a long prompt; all of them at once would need more memory than was reserved."""
    model = model_of(name)
    rows = np.random.default_rng().uniform(0, 1, (1, 4, LENGTH)).astype(np.float32)
    maps: tuple[tuple[str, Op, dict[str, Any]], ...] = (
        ("attn.hook_attn_scores", "temperature", {"value": 0.5}),
        ("attn.hook_attn_scores", "add", {"array": array(rows), "positions": (1, 2, 7, 9)}),
        ("attn.hook_pattern", "set", {"array": array(rows), "positions": (0, 2, 6, 11)}),
    )
    interventions = [
        Intervention(stack=stack, layer=0, point=point, op=op, heads=(2, 0), **change)
        for stack in stacks_of(model.config)
        for point, op, change in maps
    ]
    whole = run(build(model), [trace(model, *interventions)])[0]
    for size in (1, 4 * LENGTH * 2 * 5):
        monkeypatch.setattr("lightwell.model.hooks.attention_hooks.TAP_BYTES", size)
        cut = run(build(model), [trace(model, *interventions)])[0]
        for capture in everything(model.config).points:
            assert (cut.array(capture.name) == whole.array(capture.name)).all(), f"{capture}"


def test_a_pattern_may_not_look_ahead(model_of: Load) -> None:
    model = model_of("llama-gqa")
    intervention = Intervention(stack="decoder", layer=1, point="attn.hook_pattern", op="set", value=1.0)
    found = run(build(model), [trace(model, intervention)])[0].array("blocks.1.attn.hook_pattern")
    assert (found == np.tri(LENGTH)).all()


@pytest.mark.parametrize("name", ["llama-gqa", "gemma2", "t5"])
def test_a_change_of_every_position_reaches_generated_tokens_in_any_chunks(model_of: Load, name: str) -> None:
    model = model_of(name)
    encoded = PROMPT if model.config.kind == "encoder-decoder" else ()
    interventions = (
        Intervention(stack="decoder", layer=0, point="attn.hook_z", op="scale", value=0.0, heads=(1,)),
        Intervention(stack="decoder", layer=1, point="attn.hook_attn_scores", op="temperature", value=0.7),
        Intervention(stack="decoder", layer=None, point="logits", op="scale", value=-1.0, positions=(LENGTH - 1, 15)),
    )
    rows = AttentionCapture(pairs=((1, 0), (1, 1)))
    requests = [
        request(
            uid,
            PROMPT,
            generate(30, attention=rows, attention_prompt=True, ignore_eos=True, logprobs=2, prompt_logprobs=1),
            encoded=encoded,
            interventions=interventions if uid % 2 else (),
        )
        for uid in range(4)
    ]
    engine = build(model, num_blocks=14 + len(encoded), max_num_seqs=4, max_num_batched_tokens=7)
    found = run(engine, requests)
    assert engine.stats().num_preemptions_total > 0
    assert found == alone(model, requests)
    assert found[0].tokens != found[1].tokens
    whole = run(build(model), [trace(model, *interventions, prompt=PROMPT + tuple(found[1].tokens))])[0]
    logits = whole.array("decoder.logits" if encoded else "logits")
    assert logits[LENGTH - 1 : -1].argmax(-1).tolist() == found[1].tokens


def test_a_request_changed_in_its_first_block_takes_and_gives_no_prefix(model_of: Load) -> None:
    model = model_of("llama-gqa")
    intervention = Intervention(
        stack="decoder", layer=0, point="hook_resid_post", op="scale", value=0.5, positions=(2,)
    )
    prompt = tuple(range(3, 43))
    plain = request(0, prompt, generate(5, logprobs=3, ignore_eos=True))
    changed = replace(plain, interventions=(intervention,))
    for first, second in ((plain, changed), (changed, plain)):
        engine = build(model)
        run(engine, [first])
        assert run(engine, [second]) == alone(model, [second])
        assert engine.stats().prefix_cache_hits_total == 0


HIDDEN_KEY = array(np.where(np.arange(40) == 21, -np.inf, 0.0))
"""An addition to the scores that hides one of 40 keys."""


@pytest.mark.parametrize(
    "change",
    [
        {"point": "hook_resid_pre", "op": "scale", "value": 3.0, "positions": (30, 21)},
        {"point": "attn.hook_v", "op": "scale", "value": 3.0, "positions": (39, 21)},
        {"point": "attn.hook_attn_scores", "op": "temperature", "value": 9.0, "positions": (39, 21)},
        {"point": "attn.hook_attn_scores", "op": "add", "array": HIDDEN_KEY},
    ],
)
def test_only_the_blocks_before_the_first_change_come_from_the_prefix_cache(
    model_of: Load, change: dict[str, Any]
) -> None:
    model = model_of("llama-gqa")
    prompt = tuple(range(3, 43))
    changes = [Intervention(stack="decoder", layer=layer, **change) for layer in (0, 1)]
    changed = request(1, prompt, generate(4, logprobs=2), interventions=changes)
    engine = build(model)  # with blocks of 8 tokens
    run(engine, [request(0, prompt, generate(4))])
    answer = run(engine, [changed])[1]
    assert engine.stats().prefix_cache_hits_total == 16
    assert answer == run(build(model), [changed])[1]
    plain = request(2, prompt, generate(4, logprobs=2))
    assert run(engine, [plain])[2] == run(build(model), [plain])[2] != answer


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"point": "attn.hook_z", "op": "temperature", "value": 2.0}, "temperature"),
        ({"point": "attn.hook_z", "op": "set", "value": 0.0, "heads": (4,)}, "it has 0 to 3"),
        ({"point": "hook_embed", "op": "add", "array": array([1, 2])}, r"not \[1, 48\]"),
        (
            {"point": "hook_mlp_out", "op": "set", "array": array(np.ones((3, 48))), "positions": (1, 2)},
            r"is \[3, 48\], not \[2, 48\]",
        ),
    ],
)
def test_an_intervention_that_does_not_fit_its_point_is_refused(
    model_of: Load, change: dict[str, Any], says: str
) -> None:
    engine, intervention = build(model_of("llama-gqa")), Intervention(stack="decoder", layer=0, **change)
    with pytest.raises(ValueError, match=says):
        engine.add_request(request(0, PROMPT, generate(3), interventions=(intervention,)))
    assert not engine.has_work
