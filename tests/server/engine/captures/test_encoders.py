"""Encoder-decoders: the encoder answers alike with and without a batch, and texts equal the texts of transformers."""

import random
from pathlib import Path

import pytest
import torch

from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask, EmbedTask, HeadScoresTask, Task
from tests import tiny
from tests.server.engine.captures.test_looking_inside import text
from tests.server.engine.driving import Load, alone, build, everything, generate, request, run, two_heads


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_the_encoder_answers_a_batch_as_each_alone(model_of: Load, name: str) -> None:
    model = model_of(name)
    pairs = two_heads(model.config)
    tasks: list[Task] = [
        EmbedTask(pooling="mean"),
        EmbedTask(pooling="cls", layer=1),
        EmbedTask(pooling="none", layer=0),
        AttentionTask(capture=AttentionCapture(pairs=pairs, part="encoder", queries=(3, 0), top_k=4)),
        AttentionTask(capture=AttentionCapture(pairs=pairs, part="encoder", kind="scores", resize=5)),
        HeadScoresTask(pairs=pairs, part="encoder"),
        everything(model.config, "encoder"),
    ]
    requests = [request(uid, (), task, encoded=text(random.randrange(4, 40))) for uid, task in enumerate(tasks)]
    engine = build(model, num_blocks=2, max_num_seqs=5, max_num_batched_tokens=60)
    assert run(engine, requests) == alone(model, requests)
    assert engine.stats().computed_tokens_total == sum(len(each.encoder_token_ids) for each in requests)


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_an_encoder_decoder_says_what_transformers_says(model_of: Load, name: str, tmp_path: Path) -> None:
    model = model_of(name)
    theirs = tiny.theirs(tiny.make_variant(name, tmp_path), torch.float32)
    start = model.config.decoder_start_token_id
    assert start is not None
    requests, expected = [], {}
    for uid in range(3):
        encoded, decoded = text(random.randrange(2, 30)), [start, *text(uid)]
        requests.append(request(uid, decoded, generate(12, ignore_eos=True), encoded=encoded))
        expected[uid] = decoded.copy()
        with torch.inference_mode():
            for _ in range(12):
                logits = theirs(
                    input_ids=torch.tensor([encoded]), decoder_input_ids=torch.tensor([expected[uid]])
                ).logits
                expected[uid].append(int(logits[0, -1].argmax()))
    tight = build(model, num_blocks=15, max_num_batched_tokens=20, max_num_seqs=3)
    for engine in (build(model), tight):
        for uid, answer in run(engine, requests).items():
            assert answer.tokens == expected[uid][-12:]
