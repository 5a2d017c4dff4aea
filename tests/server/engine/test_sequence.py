"""The layers and positions that a task needs, the last block's output, and the tokens that end a text."""

import pytest

from lightwell.server.engine.messages.request import (
    AttentionCapture,
    EmbedTask,
    GenerateTask,
    PointCapture,
    Task,
    TraceTask,
)
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.engine.sequence import Chunk
from tests.server.engine.toy_runner import NUM_LAYERS, attend, generate, sequence

PROMPT = range(10)


def capture(*queries: int) -> AttentionCapture:
    return AttentionCapture(pairs=((0, 0),), queries=queries or None)


def text(attention: AttentionCapture, *, of_prompt: bool) -> GenerateTask:
    params = SamplingParams(max_tokens=3, seed=0)
    return GenerateTask(sampling=params, attention=attention, attention_prompt=of_prompt)


def trace(*points: tuple[int, str]) -> TraceTask:
    """Return a trace of these points: (layer, name)."""
    return TraceTask(points=tuple(PointCapture(name=name, stack="decoder", layer=i, point=name) for i, name in points))


@pytest.mark.parametrize(
    ("task", "first"),
    [
        (generate(), 9),
        (generate(prompt_logprobs=0), 0),
        (text(capture(), of_prompt=False), 9),
        (text(capture(), of_prompt=True), 0),
        (text(capture(7, 5), of_prompt=True), 5),
        (attend(), 0),
        (attend(6, 4, 8), 4),
        (EmbedTask(pooling="mean"), 0),
        (EmbedTask(pooling="none"), 0),
        (EmbedTask(pooling="cls"), 0),
        (EmbedTask(pooling="last"), 9),
    ],
)
def test_the_first_needed_position_is_the_first_that_the_answer_captures(task: Task, first: int) -> None:
    assert sequence(1, PROMPT, task).first_needed_position == first


def test_positions_already_captured_are_neither_needed_nor_captured_again() -> None:
    seq = sequence(1, PROMPT, attend(2, 4, 8))
    for captured_upto, first in ((3, 4), (5, 8), (9, 9)):
        seq.captured_upto = captured_upto
        assert seq.first_needed_position == first
    seq.captured_upto = 6
    assert [Chunk(seq, start, 4).capture_start for start in (0, 4, 6)] == [4, 6, 6]


@pytest.mark.parametrize(
    ("task", "num_layers", "needs_output"),
    [
        (generate(), NUM_LAYERS, True),
        (attend(layer=0), 1, False),
        (attend(layer=NUM_LAYERS - 1), NUM_LAYERS, False),
        (EmbedTask(), NUM_LAYERS, True),
        (EmbedTask(layer=0), 1, True),  # read where the first block begins
        (EmbedTask(layer=2), 2, True),
        (EmbedTask(layer=NUM_LAYERS), NUM_LAYERS, True),
        (trace((0, "hook_resid_pre"), (0, "attn.hook_k"), (0, "attn.hook_pattern")), 1, False),
        (trace((0, "attn.hook_pattern"), (0, "attn.hook_z")), 1, True),
        (trace((0, "ln1.hook_out")), 1, True),  # in a post-norm model this norm follows the attention
        (trace((0, "hook_mlp_out"), (1, "attn.hook_q")), 2, False),
    ],
)
def test_layers_and_the_last_ones_output_follow_what_is_asked_and_only_complete_ones_are_shared(
    task: Task, num_layers: int, needs_output: bool
) -> None:
    seq = sequence(1, PROMPT, task)
    assert (seq.num_layers_needed, seq.needs_output) == (num_layers, needs_output)
    assert seq.publishes_prefix == (num_layers == NUM_LAYERS)


def test_a_sample_is_taken_only_for_text_and_where_a_chunk_reaches_the_newest_token() -> None:
    seq = sequence(1, PROMPT)
    for start, num_tokens, needs_sample in ((0, 9, False), (0, 10, True), (9, 1, True)):
        assert Chunk(seq, start, num_tokens).needs_sample is needs_sample
    for task in (attend(), EmbedTask(), generate(max_tokens=0)):
        seq = sequence(1, PROMPT, task)
        assert not Chunk(seq, 0, 10).needs_sample


def test_an_empty_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="request 7: prompt_token_ids is empty"):
        sequence(7, [])


@pytest.mark.parametrize(("ignore_eos", "expected"), [(False, {3, 4, 9}), (True, {9})])
def test_stop_tokens_end_a_request_beside_the_end_of_text_unless_it_is_ignored(
    ignore_eos: bool, expected: set[int]
) -> None:
    params = SamplingParams(max_tokens=4, seed=0, eos_token_ids=(3, 4), ignore_eos=ignore_eos, stop_token_ids=(9,))
    assert params.stopping_ids == expected
