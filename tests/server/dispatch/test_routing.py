"""The worker that gets a request, compared with a simple model of the workers' load and caches."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lightwell.server.dispatch.routing import Candidate, PrefixIndex, RoutedPrompt, Router
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    GenerateTask,
    LensTask,
    Task,
    WeightsTask,
)
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.support.examples import examples

BLOCK = 4
SAMPLING = SamplingParams(max_tokens=4, seed=0)
CAPTURE = AttentionCapture(pairs=((0, 0),))


def idle(*worker_ids: int) -> list[Candidate]:
    return [Candidate(worker_id, 0, 0) for worker_id in worker_ids]


def router(num_workers: int, num_blocks: int = 100) -> Router:
    made = Router(num_workers)
    for worker_id in range(num_workers):
        made.begin(worker_id, num_blocks=num_blocks, block_size=BLOCK)
    return made


def prompt(start: int, length: int) -> RoutedPrompt:
    return RoutedPrompt(range(start, start + length))


def test_of_equals_the_one_with_the_fewest_requests_then_each_in_turn() -> None:
    made = router(3)
    assert made.route([Candidate(0, 20, 2), Candidate(1, 20, 1), Candidate(2, 20, 2)], prompt(0, 3)).worker_id == 1
    assert [made.route(idle(0, 1, 2), prompt(0, 3)).worker_id for _ in range(4)] == [2, 0, 1, 2]


def test_what_the_encoder_reads_is_part_of_the_prefix() -> None:
    made = router(2)
    for encoder_token_ids, held in (((1, 2), 0), ((1, 2), 16), ((1, 3), 0)):
        assert made.route(idle(0), RoutedPrompt(range(20), encoder_token_ids)).num_prefix_tokens == held


def test_a_worker_that_ended_holds_nothing() -> None:
    made = router(2)
    made.route(idle(0), prompt(0, 20))
    made.end(0)
    assert made.route(idle(0), prompt(0, 20)).num_prefix_tokens == 0
    made.begin(0, num_blocks=100, block_size=BLOCK)
    assert [made.route(idle(0), prompt(0, 20)).num_prefix_tokens for _ in range(2)] == [0, 16]


def test_the_ends_of_the_prompts_used_longest_ago_are_forgotten_first() -> None:
    made = router(2, num_blocks=8)
    for start in (0, 1000, 0):  # 5 blocks each
        made.route(idle(0), prompt(start, 5 * BLOCK))
    assert made.route(idle(0), prompt(0, 5 * BLOCK + 1)).num_prefix_tokens == 5 * BLOCK
    assert made.route(idle(0), prompt(1000, 5 * BLOCK + 1)).num_prefix_tokens == 3 * BLOCK


@pytest.mark.parametrize(
    ("task", "takes", "leaves"),
    [
        (GenerateTask(sampling=SAMPLING), True, True),
        (GenerateTask(sampling=SAMPLING, attention=CAPTURE), True, True),
        (GenerateTask(sampling=SAMPLING, attention=CAPTURE, attention_prompt=True), False, True),
        (GenerateTask(sampling=replace(SAMPLING, prompt_logprobs=0)), False, True),
        (EmbedTask(), True, True),
        (EmbedTask(pooling="mean"), False, True),
        (EmbedTask(layer=1), False, False),
        (AttentionTask(capture=CAPTURE), False, False),
        (LensTask(layers=(0,), positions=(0,), top_k=1), False, False),
        (WeightsTask(question="norms"), False, False),
    ],
)
def test_who_needs_every_position_takes_nothing_and_who_runs_all_layers_leaves_it(
    task: Task, takes: bool, leaves: bool
) -> None:
    made = RoutedPrompt.of(task, range(20), (), is_changed=False)
    assert (made.takes, made.leaves) == (takes, leaves)
    assert not RoutedPrompt.of(task, range(20), (), is_changed=True).takes
    assert not RoutedPrompt.of(task, range(20), (), is_changed=True).leaves
    routed = router(2)
    routed.route(idle(0), made)
    assert routed.route(idle(0), prompt(0, 20)).num_prefix_tokens == (16 if leaves else 0)
    assert routed.route(idle(0), made).num_prefix_tokens == (16 if takes else 0)


# ---- whatever arrives

tokens = st.lists(st.integers(0, 1), max_size=20)
arrivals = st.lists(st.tuples(tokens, st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=60)


def common_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of whole blocks that both begin with, not counting the last token of `one`."""
    limit = min(len(one) - 1, len(other)) // BLOCK * BLOCK
    return (
        next((i for i in range(0, limit, BLOCK) if one[i : i + BLOCK] != other[i : i + BLOCK]), max(0, limit)) // BLOCK
    )


@settings(max_examples=examples(60))
@given(num_workers=st.integers(2, 5), arrivals=arrivals)
def test_it_is_the_cheapest_worker_by_an_obvious_account(
    num_workers: int, arrivals: list[tuple[list[int], int, int]]
) -> None:
    made = router(num_workers)
    given_to: list[list[list[int]]] = [[] for _ in range(num_workers)]
    left = [0] * num_workers
    for token_ids, max_tokens, done in arrivals:
        held = [max((common_blocks(token_ids, each) for each in seen), default=0) * BLOCK for seen in given_to]
        costs = [left[i] + len(token_ids) - held[i] for i in range(num_workers)]
        candidates = [Candidate(i, left[i], 0) for i in range(num_workers)]
        route = made.route(candidates, RoutedPrompt(token_ids))
        assert costs[route.worker_id] == min(costs)
        assert route.num_prefix_tokens == held[route.worker_id]
        given_to[route.worker_id].append(token_ids)
        left[route.worker_id] += len(token_ids) + max_tokens
        left = [max(0, each - done) for each in left]


@settings(max_examples=examples(60))
@given(max_blocks=st.integers(1, 12), lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=40))
def test_an_index_never_grows_beyond_the_cache_and_knows_the_latest_prompt(
    max_blocks: int, lengths: list[tuple[int, int]]
) -> None:
    index = PrefixIndex(max_blocks)
    for group, length in lengths:
        hashes = [100 * group + i for i in range(length)]
        index.add(hashes)
        assert len(index) <= max_blocks
        assert index.num_held(hashes) == min(length, max_blocks)
