"""Traces, the lens and head scores: the same bits in a crowd, in chunks and after preemption, and each agrees with the
others, for every family.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from lightwell.model.batch import Batch
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.network.fused_decoder import DecodeStep
from lightwell.model.network.sublayers import Feedforward
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EngineRequest,
    HeadScoresTask,
    LensTask,
    Part,
    PointCapture,
    Task,
    TraceTask,
)
from tests import reference, tiny
from tests.server.engine.driving import Load, alone, build, everything, generate, request, run, two_heads

CLOSE = 2e-4
"""Largest difference between log-probabilities in float32 and in float64."""


def text(length: int) -> list[int]:
    return [random.randrange(3, tiny.VOCAB_SIZE) for _ in range(length)]


def ask(model: Transformer, uid: int, length: int, task: TraceTask | LensTask | AttentionTask) -> EngineRequest:
    """Return a request with a text of this length and, for an encoder-decoder, another text for the encoder."""
    encoded = text(length + 7) if model.config.kind == "encoder-decoder" else ()
    return request(uid, text(length), task, encoded=encoded)


UP_TO_THE_KEYS = {
    "hook_resid_pre",
    *(f"attn.hook_{name}" for name in ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern")),
}


@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_a_block_that_is_left_after_its_keys_shows_what_it_would_show_otherwise(model_of: Load, name: str) -> None:
    """Check that the last block stops after its keys if no other request runs; next to a text stream it is computed
    to the end, since the stream needs it.
    """
    model = model_of(name)
    whole = everything(model.config)
    ids, encoded = text(29), text(11) if model.config.kind == "encoder-decoder" else ()
    expected = alone(model, [request(0, ids, whole, encoded=encoded)])[0]
    stream = (
        [] if model.config.kind == "encoder" else [request(9, text(7), generate(8), encoded=text(5) if encoded else ())]
    )
    for stack, layer in dict.fromkeys((point.stack, point.layer) for point in whole.points):
        points = tuple(
            point
            for point in whole.points
            if (point.stack, point.layer) == (stack, layer) and point.point in UP_TO_THE_KEYS
        )
        if not points:
            continue
        for beside in ([], stream):
            engine = build(model, max_num_seqs=8, max_num_batched_tokens=17)
            found = run(engine, [*beside, request(1, ids, TraceTask(points=points), encoded=encoded)])[1]
            for point in points:
                assert found.array(point.name).tobytes() == expected.array(point.name).tobytes(), point.name


def test_an_inspection_of_a_layers_patterns_runs_no_mlp_of_that_layer(
    model_of: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runs, run_step = model_of("llama"), list[Any](), DecodeStep.__call__

    def noted(step: DecodeStep, x: torch.Tensor, batch: Batch, *others: Any) -> torch.Tensor:
        runs.append(others[3])  # the layers
        return run_step(step, x, batch, *others)

    monkeypatch.setattr(DecodeStep, "__call__", noted)
    monkeypatch.delattr(Feedforward, "__call__")  # block by block only the last layer's keys are computed
    for layer in range(model.config.num_layers):
        runs.clear()
        alone(model, [request(1, text(9), AttentionTask(capture=AttentionCapture(pairs=((layer, 0),))))])
        assert runs == [(0, layer)] * (layer > 0)


def test_the_keys_of_a_last_block_that_was_left_serve_whoever_reads_the_same_text(model_of: Load) -> None:
    model, ids = model_of("llama"), text(40)
    engine = build(model)
    looked = AttentionTask(capture=AttentionCapture(pairs=((model.config.num_layers - 1, 0),)))
    run(engine, [request(1, ids, looked)])
    stream = request(2, ids, generate(12, ignore_eos=True))
    assert run(engine, [stream])[2] == alone(model, [stream])[2]
    assert engine.stats().prefix_cache_hits_total > 0


@pytest.mark.parametrize("name", ["llama-gqa", "bart"])
def test_preemption_repeats_nothing_in_a_trace(model_of: Load, name: str) -> None:
    model = model_of(name)
    encoded = text(11) if model.config.kind == "encoder-decoder" else ()
    streams = [request(uid, text(9), generate(40, ignore_eos=True), encoded=encoded) for uid in range(2)]
    traced = request(2, text(40), everything(model.config), encoded=encoded)
    num_blocks = 13 + (6 if encoded else 0)
    engine = build(model, num_blocks=num_blocks, max_num_batched_tokens=4, max_num_seqs=4)
    found = run(engine, [*streams, traced], arrivals=[0, 0, 6])
    assert engine.stats().num_preemptions_total > 0
    assert found == alone(model, [*streams, traced])


def test_a_trace_holds_what_was_asked_for_in_the_order_asked_for(model_of: Load) -> None:
    model = model_of("llama-gqa")
    prompt = text(30)
    whole = run(build(model), [request(0, prompt, everything(model.config))])[0]

    def capture(name: str, point: str, **selection: object) -> PointCapture:
        return PointCapture(name=name, stack="decoder", layer=1, point=point, **selection)

    task = TraceTask(
        points=(
            capture("z", "attn.hook_z", heads=(3, 0), positions=(20, 2, 2, 11)),
            capture("k", "attn.hook_k", heads=(1,), positions=(29,), dtype="float16"),
            capture("map", "attn.hook_pattern", heads=(2, 1), positions=(25, 3), keys=(0, 3, 29)),
            PointCapture(name="words", stack="decoder", layer=None, point="logits", positions=(28, 7)),
        )
    )
    part = run(build(model, max_num_batched_tokens=16, max_num_seqs=4), [request(0, prompt, task)])[0]
    z, k, pattern = (whole.array(f"blocks.1.attn.hook_{point}") for point in ("z", "k", "pattern"))
    assert (part.array("z") == z[[20, 2, 2, 11]][:, [3, 0]]).all()
    assert (part.array("k") == k[[29]][:, [1]].astype(np.float16)).all()
    assert (part.array("map") == pattern[[2, 1]][:, [25, 3]][:, :, [0, 3, 29]]).all()
    assert (part.array("words") == whole.array("logits")[[28, 7]]).all()


def test_logits_are_made_of_no_rows_before_the_first_that_is_asked_for(
    model_of: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the rows of logits. With a large vocabulary the logits of a whole prompt cost as much as many layers; the
    logits of the last position cost almost nothing.
    """
    model = model_of("llama-gqa")
    make, rows = model.logits, []

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return make(hidden)

    monkeypatch.setattr(model, "logits", counted)
    point = PointCapture(name="words", stack="decoder", layer=None, point="logits", positions=(21, 24, 24))
    run(build(model), [request(0, text(30), TraceTask(points=(point,)))])
    assert rows == [4]


@pytest.mark.parametrize("name", ["llama-gqa", "gpt_oss", "lfm2", "phi3-long", "bart"])
def test_the_rows_of_generated_tokens_are_those_of_a_trace(model_of: Load, name: str) -> None:
    """Run eight at once, in chunks; requests without rows of the prompt start from the prefix cache. Of the other
    families tests/server/dialects/test_changing_every_family.py compares the rows of one request.
    """
    model, config = model_of(name), model_of(name).config
    parts: list[Part] = ["decoder", "cross"] if config.cross_attention else ["decoder"]
    shared, encoded = text(24), text(25) if config.cross_attention else ()
    engine = build(model, max_num_batched_tokens=33, max_num_seqs=8)
    run(engine, [request(99, [*shared, *text(5)], generate(3, ignore_eos=True), encoded=encoded)])
    requests, captures = [], []
    for uid in range(8):
        captures.append(AttentionCapture(pairs=two_heads(config), part=parts[uid % len(parts)]))
        options = {"attention": captures[uid], "attention_prompt": uid % 4 < 2}
        task = generate(9, ignore_eos=True, temperature=1.0, seed=uid, **options)
        requests.append(request(uid, [*shared, *text(1 + uid % 11)], task, encoded=encoded))
    streams = run(engine, requests)
    assert engine.stats().prefix_cache_hits_total >= (4 * len(shared) if config.reuses_prefixes else 0)
    for asked, capture in zip(requests, captures, strict=True):
        stream, length = streams[asked.uid], len(asked.prompt_token_ids)
        if length <= (model.rotary_switch or 0) < length + len(stream.tokens):
            continue  # its first rows have the factors of a shorter text
        exact = _traced_rows(model, replace(asked, prompt_token_ids=(*asked.prompt_token_ids, *stream.tokens)), capture)
        if asked.uid % 4 < 2:
            in_prompt = stream.array("attention.prompt")
            assert (in_prompt == exact[:, :length, : in_prompt.shape[2]]).all()
        for i in range(len(stream.tokens)):
            row = stream.array("attention", i)
            assert (row == exact[:, length - 1 + i, : row.shape[1]]).all()
            assert row.shape[1] == (len(encoded) if capture.part == "cross" else length + i)


def _traced_rows(model: Transformer, asked: EngineRequest, capture: AttentionCapture) -> np.ndarray:
    """Return the patterns of these pairs in a pass over the whole text, [pair, query, key]."""
    attn = "cross_attn" if capture.part == "cross" else "attn"
    points = tuple(
        PointCapture(name=str(i), stack="decoder", layer=layer, point=f"{attn}.hook_pattern", heads=(head,))
        for i, (layer, head) in enumerate(capture.pairs)
    )
    trace = run(build(model), [replace(asked, task=TraceTask(points=points))])[asked.uid]
    return np.concatenate([trace.array(point.name) for point in points])


@pytest.mark.parametrize("name", sorted({*tiny.DECODERS, *tiny.MASKED_LMS, *tiny.ENCODER_DECODERS} - {"gemma3n"}))
def test_the_lens_reads_each_state_through_the_final_norm_and_the_head(
    model_of: Load, name: str, tmp_path: Path
) -> None:
    model, config = model_of(name), model_of(name).config
    weights = load_weights(tiny.make_variant(name, tmp_path), config, torch.float64)
    positions, targets = [13, 2, 7], random.sample(range(tiny.VOCAB_SIZE), 3)
    layers = tuple(range(config.num_layers, -1, -1))
    task = LensTask(layers=layers, positions=tuple(positions), top_k=5, target_token_ids=tuple(targets))
    asked = ask(model, 0, 15, task)
    found = run(build(model, max_num_batched_tokens=8, max_num_seqs=8), [asked])[0]
    trace = reference.run(config, weights, list(asked.prompt_token_ids), list(asked.encoder_token_ids))
    states = [trace.of_layers("hook_resid_pre")[0], *trace.of_layers("hook_resid_post")]
    for row, layer in enumerate(layers):
        expected = reference.lens(config, weights, states[layer][positions]).log_softmax(-1)
        ids = torch.from_numpy(found.array("lens.ids")[row].copy()).long()
        assert all(len(set(likeliest)) == 5 for likeliest in ids.tolist())
        # Two tokens with probabilities that differ only by rounding may be swapped.
        assert np.allclose(expected.gather(1, ids), expected.topk(5).values, atol=CLOSE)
        assert np.allclose(found.array("lens.logprobs")[row], expected.topk(5).values, atol=CLOSE)
        assert np.allclose(found.array("lens.entropy")[row], -(expected.exp() * expected).sum(-1), atol=CLOSE)
        of_targets = expected[:, targets]
        assert np.allclose(found.array("lens.target_logprobs")[row], of_targets, atol=CLOSE)
        first, last = ((expected[:, None] > of_targets[..., None] + by).sum(-1) for by in (CLOSE, -CLOSE))
        ranks = torch.from_numpy(found.array("lens.target_ranks")[row].copy())
        assert ((first < ranks) & (ranks <= last)).all()


@pytest.mark.every_family
@pytest.mark.parametrize(
    ("name", "task", "says"),
    [
        ("bert", AttentionTask(capture=AttentionCapture(pairs=((0, 0),))), "needs the decoder; this model has none"),
        ("bert", generate(3), "needs the decoder"),
        ("embedding_gemma", LensTask(layers=(1,), positions=(0,), top_k=1), "Gemma3TextModel has no language-model"),
        (
            "gemma3n",
            LensTask(layers=(1,), positions=(0,), top_k=1),
            "Gemma3nForCausalLM computes its logits from several",
        ),
        ("llama", HeadScoresTask(pairs=((0, 0),), part="encoder"), "needs the encoder; this model has none"),
        ("llama", AttentionTask(capture=AttentionCapture(pairs=((0, 4),))), "no head 4 in layer 0.*heads 0 to 3"),
        ("llama", HeadScoresTask(pairs=((2, 0),)), "no head 0 in layer 2"),
        (
            "llama",
            TraceTask(
                points=(PointCapture(name="x", stack="decoder", layer=0, point="hook_resid_pre", positions=(9,)),)
            ),
            "x has positions 0 to 4; requested are .9",
        ),
    ],
)
def test_what_the_model_does_not_have_is_refused_and_not_made_up(
    model_of: Load, name: str, task: Task, says: str
) -> None:
    engine = build(model_of(name))
    with pytest.raises(ValueError, match=says):
        engine.add_request(request(0, text(5), task))
    assert not engine.has_work
