"""The layers and tokens that a task needs, and the step that completes it."""

import pytest

from server.engine.request import AttentionCapture, EmbedTask, GenerateTask, PointCapture, Pooling, Task, TraceTask
from server.engine.sampling_params import SamplingParams
from server.engine.sequence import Chunk
from tests.server.engine.toy_runner import NUM_LAYERS, attend, generate, sequence

PROMPT = range(10)
SAMPLING = SamplingParams(max_tokens=3, seed=0)


def capture(*queries: int) -> AttentionCapture:
    return AttentionCapture(pairs=((0, 0),), queries=queries or None)


def trace(*points: str) -> TraceTask:
    """Return a trace of these points of the first block."""
    return TraceTask(
        points=tuple(PointCapture(name=f"blocks.0.{each}", stack="decoder", layer=0, point=each) for each in points)
    )


@pytest.mark.parametrize(
    ("task", "first"),
    [
        (generate(), 9),
        (generate(prompt_logprobs=0), 0),
        (GenerateTask(sampling=SAMPLING, attention=capture()), 9),
        (GenerateTask(sampling=SAMPLING, attention=capture(), attention_prompt=True), 0),
        (GenerateTask(sampling=SAMPLING, attention=capture(7, 5), attention_prompt=True), 5),
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


def test_positions_already_captured_are_not_needed_again() -> None:
    seq = sequence(1, PROMPT, attend(2, 4, 8))
    seq.captured_upto = 3
    assert seq.first_needed_position == 4
    seq.captured_upto = 5
    assert seq.first_needed_position == 8
    seq.captured_upto = 9
    assert seq.first_needed_position == 9


def test_a_repeated_chunk_captures_only_what_is_new() -> None:
    seq = sequence(1, PROMPT, attend())
    seq.captured_upto = 6
    assert [Chunk(seq, start, 4).capture_start for start in (0, 4, 6)] == [4, 6, 6]


@pytest.mark.parametrize(
    ("task", "num_layers"),
    [
        (generate(), NUM_LAYERS),
        (attend(layer=0), 1),
        (attend(layer=NUM_LAYERS - 1), NUM_LAYERS),
        (EmbedTask(), NUM_LAYERS),
        (EmbedTask(layer=0), 1),  # read where the first block begins
        (EmbedTask(layer=2), 2),
        (EmbedTask(layer=NUM_LAYERS), NUM_LAYERS),
    ],
)
def test_layers_follow_what_is_asked_and_only_complete_ones_are_shared(task: Task, num_layers: int) -> None:
    seq = sequence(1, PROMPT, task)
    assert seq.num_layers_needed == num_layers
    assert seq.publishes_prefix == (num_layers == NUM_LAYERS)


@pytest.mark.parametrize(
    ("task", "needs_output"),
    [
        (generate(), True),
        (EmbedTask(layer=1), True),
        (attend(), False),
        (trace("hook_resid_pre", "attn.hook_k", "attn.hook_pattern"), False),
        (trace("attn.hook_pattern", "attn.hook_z"), True),
        (trace("ln1.hook_out"), True),  # in a post-norm model this norm follows the attention
    ],
)
def test_a_last_block_is_left_with_its_keys_where_nothing_behind_them_is_asked_for(
    task: Task, needs_output: bool
) -> None:
    assert sequence(1, PROMPT, task).needs_output == needs_output


def test_of_two_points_the_deeper_one_decides_how_much_of_the_last_block_runs() -> None:
    shallow = PointCapture(name="blocks.0.hook_mlp_out", stack="decoder", layer=0, point="hook_mlp_out")
    deep = PointCapture(name="blocks.1.attn.hook_q", stack="decoder", layer=1, point="attn.hook_q")
    seq = sequence(1, PROMPT, TraceTask(points=(shallow, deep)))
    assert (seq.num_layers_needed, seq.needs_output) == (2, False)


def test_a_sample_is_taken_only_where_a_chunk_reaches_the_newest_token() -> None:
    seq = sequence(1, PROMPT)
    assert not seq.needs_sample(Chunk(seq, 0, 9))
    assert seq.needs_sample(Chunk(seq, 0, 10))
    assert seq.needs_sample(Chunk(seq, 9, 1))


@pytest.mark.parametrize("task", [attend(), EmbedTask(), generate(max_tokens=0)])
def test_a_task_without_tokens_takes_no_sample(task: Task) -> None:
    seq = sequence(1, PROMPT, task)
    assert not seq.needs_sample(Chunk(seq, 0, 10))


def test_generation_ends_with_a_stopping_token_or_at_max_tokens() -> None:
    seq = sequence(1, PROMPT, generate(max_tokens=2, stop=(3,)))
    seq.num_computed_tokens = 10
    assert seq.completion() is None
    seq.token_ids.append(4)
    assert seq.completion() is None
    seq.token_ids.append(4)
    assert seq.completion() == "length"
    seq.token_ids[-1] = 3
    assert seq.completion() == "stop"


def test_a_stop_token_in_the_prompt_does_not_end_generation() -> None:
    seq = sequence(1, PROMPT, generate(stop=(9,)))
    seq.num_computed_tokens = 9
    assert seq.completion() is None


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_an_embedding_is_done_once_the_whole_prompt_is_computed(pooling: Pooling) -> None:
    seq = sequence(1, PROMPT, EmbedTask(pooling=pooling))
    seq.num_computed_tokens = 9
    assert seq.completion() is None
    seq.num_computed_tokens = 10
    assert seq.completion() == "done"


def test_the_last_generated_token_needs_no_room() -> None:
    assert sequence(1, PROMPT, generate(max_tokens=3)).max_num_computed_tokens == 12
    assert sequence(1, PROMPT, attend()).max_num_computed_tokens == 10


def test_an_empty_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="request 7: prompt_token_ids is empty"):
        sequence(7, [])
