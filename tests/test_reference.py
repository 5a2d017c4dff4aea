"""The slow network equals transformers (eager) on every kind of checkpoint, so it may judge the fast one."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import PositionBiasConfig
from lightwell.model.hooks.point_names import full_name, points_of, sizes, stack_config, stacks, why_absent
from tests import reference, tiny
from tests.reference import formulas

pytestmark = pytest.mark.every_family

TOLERANCE = 1e-10


def _tokens(count: int, step: int) -> list[int]:
    """Return tokens that are not special and rarely repeat; the sequence is longer than every window."""
    return [(step * i * i + 31 * i + 5) % (tiny.VOCAB_SIZE - 5) + 5 for i in range(count)]


TOKENS, ENCODER_TOKENS = _tokens(60, 17), _tokens(45, 13)


@pytest.fixture(scope="module", params=list(tiny.VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


@cache
def _traced(folder: Path, hf_casts: bool) -> reference.Trace:
    config = read_config(folder)
    weights = load_weights(folder, config, torch.float64)
    return reference.run(config, weights, TOKENS, ENCODER_TOKENS if config.encoder else None, hf_casts=hf_casts)


@cache
def _theirs(folder: Path) -> Any:
    model = tiny.theirs(folder, torch.float64)
    inputs = {"input_ids": torch.tensor([TOKENS])}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": torch.tensor([ENCODER_TOKENS]), "decoder_input_ids": torch.tensor([TOKENS])}
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True)


def _worst(ours: list[torch.Tensor], theirs: Any) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float((mine - other[0]).abs().max()) for mine, other in pairs)


def test_logits_equal_those_of_transformers_in_float64(folder: Path) -> None:
    ours, theirs = _traced(folder, True), _theirs(folder)
    if ours.config.has_head:
        assert _worst([ours.logits], [theirs.logits]) <= TOLERANCE
    else:
        assert _worst([ours.final], [theirs.last_hidden_state]) <= TOLERANCE


def test_patterns_equal_those_of_transformers_in_float64(folder: Path) -> None:
    ours, theirs = _traced(folder, True), _theirs(folder)
    if ours.config.encoder is None:
        assert _worst(ours.of_layers("attn.hook_pattern"), theirs.attentions) <= TOLERANCE
        return
    assert _worst(ours.of_layers("attn.hook_pattern", "encoder"), theirs.encoder_attentions) <= TOLERANCE
    assert _worst(ours.of_layers("attn.hook_pattern"), theirs.decoder_attentions) <= TOLERANCE
    assert _worst(ours.of_layers("cross_attn.hook_pattern"), theirs.cross_attentions) <= TOLERANCE


def test_hidden_states_equal_those_of_transformers_in_float64(folder: Path) -> None:
    ours, theirs = _traced(folder, True), _theirs(folder)
    if ours.config.encoder is None:
        expected = theirs.hidden_states
    else:
        expected = theirs.decoder_hidden_states
        assert _worst(ours.hidden_states("encoder"), theirs.encoder_hidden_states) <= TOLERANCE
    if ours.config.altup is not None:
        expected = (*(state[0] for state in expected[:-1]), ours.final[None])  # theirs has all streams, uncombined
    if ours.config.embedding_size is not None:
        expected = (*expected[:-1], ours.final[None])  # theirs is projected to the token table's width
    assert _worst(ours.hidden_states(), expected) <= TOLERANCE


def test_the_casts_of_transformers_change_little(folder: Path) -> None:
    with_casts, without = _traced(folder, True), _traced(folder, False)
    assert set(with_casts.points) == set(without.points)
    patterns = [name for name in without.points if name.endswith("hook_pattern")]
    assert max(float((with_casts.points[name] - without.points[name]).abs().max()) for name in patterns) < 1e-4


def test_every_point_that_the_model_has_is_given_in_its_shape(folder: Path) -> None:
    trace = _traced(folder, False)
    config, expected = trace.config, {}
    for stack in stacks(config):
        length = len(ENCODER_TOKENS) if (stack == "encoder" and config.encoder) else len(TOKENS)
        for point in points_of(config, stack):
            layers = range(stack_config(config, stack).num_layers) if point.in_block else [None]
            for layer in layers:
                if why_absent(config, stack, point, layer) is None:
                    shape = sizes(config, stack, point, length, len(ENCODER_TOKENS), layer)
                    expected[full_name(config, stack, point.name, layer)] = shape
    assert {name: tuple(value.shape) for name, value in trace.points.items()} == expected


def test_the_patterns_of_test_checkpoints_are_neither_flat_nor_one_hot(folder: Path) -> None:
    for name, pattern in _traced(folder, False).points.items():
        if name.endswith("hook_pattern"):
            last_rows = pattern[:, 30:]
            entropy = -(last_rows * last_rows.clamp_min(1e-300).log()).sum(-1).mean()
            assert 0.3 < entropy < 3.5, name  # nats; 45 keys seen evenly would be 3.8


def test_buckets_of_distance_are_those_that_t5_was_trained_with() -> None:
    one_way = PositionBiasConfig(num_buckets=32, max_distance=128, bidirectional=False)
    both = PositionBiasConfig(num_buckets=32, max_distance=128, bidirectional=True)
    # Near distances have a bucket each; beyond max_distance all share the last; keys after the query are 0 or apart.
    assert [formulas.bucket(-d, one_way) for d in (0, 1, 15, 16, 127, 128, 5000)] == [0, 1, 15, 16, 31, 31, 31]
    assert [formulas.bucket(d, one_way) for d in (1, 50)] == [0, 0]
    assert [formulas.bucket(-d, both) for d in (0, 1, 7, 8, 127, 128)] == [0, 1, 7, 8, 15, 15]
    assert [formulas.bucket(d, both) for d in (1, 7, 8, 128)] == [17, 23, 24, 31]
    edges = [d for d in range(16, 128) if formulas.bucket(-d, one_way) != formulas.bucket(1 - d, one_way)]
    assert edges == [16, *(math.ceil(16 * 8 ** (i / 16)) for i in range(1, 16))]
