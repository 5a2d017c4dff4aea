"""The lens and head scores, against the model's own logits and patterns."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from model.checkpoint.weight_files import load_weights
from server.engine.request import LensTask
from tests import reference, tiny
from tests.server.engine.captures.test_looking_inside import CLOSE, ask
from tests.server.engine.driving import Load, build, run


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
