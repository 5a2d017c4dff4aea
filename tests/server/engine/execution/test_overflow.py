"""Numbers that overflow end their own request with an error or are returned unchanged, and affect no other request."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    Intervention,
    PointCapture,
    Task,
    TraceTask,
)
from tests import tiny
from tests.server.engine.driving import Load, alone, assert_same, build, everything, generate, load, request, run

PROMPT = tuple(range(5, 17))
OTHERS = [request(uid, range(uid, uid + 6 + uid), generate(9, temperature=0.7, seed=uid)) for uid in range(1, 6)]


def scaled(point: str, factor: float, layer: int | None = 1, **where: tuple[int, ...]) -> Intervention:
    return Intervention(stack="decoder", layer=layer, point=point, op="scale", value=factor, **where)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama-gqa", {}),
        ("llama-gqa", {"temperature": 1.0, "top_p": 0.9, "top_k": 5}),
        ("gpt2", {"repetition_penalty": 1.3, "logprobs": 2}),
        ("bart", {"min_tokens": 4}),
    ],
    ids=str,
)
def test_a_request_that_overflows_ends_with_words_and_its_neighbours_keep_their_bits(
    model_of: Load, name: str, options: dict[str, Any]
) -> None:
    """Also check the requests that reuse its cache blocks: the old numbers there must not affect them."""
    model = model_of(name)
    encoded = PROMPT if model.config.encoder else ()
    others = [replace(each, encoder_token_ids=encoded) for each in OTHERS]
    quiet = alone(model, others)
    large = request(0, PROMPT, generate(8, **options), encoded=encoded, interventions=(scaled("attn.hook_v", 1e38),))
    engine = build(model, num_blocks=10, max_num_seqs=2, max_num_batched_tokens=7)
    answers = run(engine, [large, *others], arrivals=[0] * 6)
    assert (answers[0].finish_reason, answers[0].tokens) == ("overflow", [])
    assert "interventions: the logits at position 11 are infinite or no numbers" in (answers[0].error or "")
    assert_same(answers, quiet)


def test_an_overflow_after_some_tokens_ends_the_request_behind_them(model_of: Load) -> None:
    model = model_of("llama-gqa")
    plain = run(build(model), [request(0, PROMPT, generate(4))])[0]
    late = scaled("logits", 1e38, None, positions=(len(PROMPT) + 1,))
    answer = run(build(model), [request(0, PROMPT, generate(4), interventions=(late,))])[0]
    assert answer.finish_reason == "overflow"
    assert answer.tokens == plain.tokens[:2]


def test_log_probabilities_of_a_prompt_are_never_no_numbers(model_of: Load) -> None:
    at_three = scaled("logits", 1e38, None, positions=(3,))
    task = generate(4, prompt_logprobs=1)
    answer = run(build(model_of("llama-gqa")), [request(0, PROMPT, task, interventions=(at_three,))])[0]
    assert answer.finish_reason == "overflow"
    assert "position 3 " in (answer.error or "")


def test_weights_that_are_no_numbers_are_the_servers_fault(tmp_path: Path) -> None:
    model = load(tiny.make_variant("opt-post", tmp_path))
    quiet = alone(model, OTHERS)
    model.tokens.to_dense()[60] = torch.nan
    answers = run(build(model), [request(0, (60, 7), generate(3)), *OTHERS])
    assert answers[0].finish_reason == "error"
    assert "logits at position 1 are infinite or no numbers" in (answers[0].error or "")
    assert_same(answers, quiet)


def test_a_trace_tells_what_overflowed_as_it_is(model_of: Load) -> None:
    model = model_of("gpt2")
    large = scaled("attn.hook_v", 1e38)
    answer = run(build(model), [request(0, PROMPT, everything(model.config), interventions=(large,))])[0]
    assert answer.finish_reason == "done"
    assert not np.isfinite(answer.array("blocks.1.hook_resid_post")).all()
    assert np.isfinite(answer.array("blocks.1.hook_resid_pre")).all()


def traced(point: str) -> TraceTask:
    name = f"blocks.0.{point}"
    return TraceTask(points=(PointCapture(name=name, stack="decoder", layer=0, point=point, dtype="float16"),))


BYTES = AttentionCapture(pairs=((1, 0),), dtype="uint8")
SCORES = AttentionCapture(pairs=((1, 0),), dtype="float16", kind="scores")


@pytest.mark.parametrize(
    ("task", "large", "says"),
    [
        (
            traced("hook_resid_post"),
            scaled("hook_resid_post", 1e6, 0, positions=(7,)),
            "blocks.0.hook_resid_post holds .* which float16 cannot; dtype float32 is accepted",
        ),
        (
            AttentionTask(capture=BYTES),
            scaled("attn.hook_pattern", 3.0),
            "which uint8 cannot; dtype float32 is accepted",
        ),
        (
            AttentionTask(capture=replace(BYTES, resize=4)),
            scaled("attn.hook_pattern", 3.0),
            "which uint8 cannot; dtype float32 is accepted",
        ),
        (generate(3, attention=SCORES), scaled("attn.hook_attn_scores", 1e6), "attention holds "),
    ],
)
def test_numbers_that_their_type_cannot_hold_end_the_request(
    model_of: Load, task: Task, large: Intervention, says: str
) -> None:
    engine = build(model_of("llama-gqa"), max_num_seqs=2, max_num_batched_tokens=3)
    answers = run(engine, [request(0, PROMPT, task), request(1, PROMPT, task, interventions=(large,))])
    assert answers[0].finish_reason in ("done", "length")
    assert all(np.isfinite(answers[0].array(name)).all() for name in answers[0].tensors[0])
    assert answers[1].finish_reason == "overflow"
    assert re.search(says, answers[1].error or "")


def test_float16_keeps_the_infinity_of_masked_scores(model_of: Load) -> None:
    scores = run(build(model_of("llama-gqa")), [request(0, PROMPT, traced("attn.hook_attn_scores"))])[0]
    assert (np.isneginf(scores.array("blocks.0.attn.hook_attn_scores")) == np.triu(np.ones((12, 12)), 1)).all()
