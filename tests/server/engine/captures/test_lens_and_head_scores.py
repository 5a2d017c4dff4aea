"""The lens and head scores, against the model's own logits and patterns."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from model.checkpoint.weight_files import load_weights
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    HeadScoresTask,
    LensTask,
)
from tests import reference, tiny
from tests.server.engine.captures.test_looking_inside import CLOSE, ask, text
from tests.server.engine.driving import Load, build, request, run


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


@pytest.mark.parametrize("name", ["llama-gqa", "bert"])
def test_head_scores_are_those_of_the_pattern(model_of: Load, name: str) -> None:
    model = model_of(name)
    part = "encoder" if model.config.kind == "encoder" else "decoder"
    prompt = [5, 6, 7, 5, 6, 8, 5, *text(14)]
    pairs = ((1, 2), (0, 0), (1, 0))
    scores = HeadScoresTask(pairs=pairs, offsets=(4, 30), part=part)
    capture = AttentionCapture(pairs=pairs, part=part)
    engine = build(model, max_num_batched_tokens=8, max_num_seqs=8)
    answers = run(engine, [request(0, prompt, scores), request(1, prompt, AttentionTask(capture=capture))])
    found, pattern = answers[0].array("heads.scores"), answers[1].array("attention")
    expected = np.zeros((3, len(prompt), 8))
    for pair in range(3):
        for q in range(len(prompt)):
            row = pattern[pair, q].astype(np.float64)
            matches = [p + 1 for p in range(q) if prompt[p] == prompt[q]]
            expected[pair, q] = [
                row[q - 1] if q else 0,
                row[q],
                row[0],
                -sum(x * np.log(x) for x in row if x > 0),
                sum(x * abs(q - k) for k, x in enumerate(row)),
                sum(row[k] for k in matches),
                row[q - 4] if q >= 4 else 0,
                0,
            ]
    assert np.allclose(found, expected, atol=1e-6)
