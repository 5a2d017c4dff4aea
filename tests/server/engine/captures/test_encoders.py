"""Captures of encoders and encoder-decoders: equal with and without a batch, and close to transformers' numbers."""

import random
from pathlib import Path

import pytest
import torch

from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    HeadScoresTask,
    Task,
)
from tests import tiny
from tests.server.engine.captures.test_looking_inside import text
from tests.server.engine.driving import Load, alone, build, everything, generate, request, run


@pytest.mark.parametrize("name", [*tiny.ENCODERS, *tiny.ENCODER_DECODERS])
def test_an_encoder_answers_a_batch_as_each_alone(model_of: Load, name: str) -> None:
    model = model_of(name)
    last = model.config.num_heads - 1
    pairs = ((0, 1), (1, last))
    tasks: list[Task] = [
        EmbedTask(pooling="mean"),
        EmbedTask(pooling="cls"),
        EmbedTask(pooling="cls", layer=1),
        EmbedTask(pooling="none", layer=0),
        EmbedTask(pooling="last"),
        AttentionTask(capture=AttentionCapture(pairs=pairs, part="encoder", queries=(3, 0), top_k=4)),
        AttentionTask(capture=AttentionCapture(pairs=pairs, part="encoder", kind="scores", resize=5)),
        HeadScoresTask(pairs=pairs, part="encoder"),
        everything(model.config, "encoder"),
    ]
    texts = [text(random.randrange(4, 40)) for _ in tasks]
    is_alone = model.config.kind == "encoder"
    requests = [
        request(uid, words if is_alone else (), task, encoded=() if is_alone else words)
        for uid, (words, task) in enumerate(zip(texts, tasks, strict=True))
    ]
    engine = build(model, num_blocks=2, max_num_seqs=5, max_num_batched_tokens=60)
    assert run(engine, requests) == alone(model, requests)
    assert engine.stats().computed_tokens_total == sum(map(len, texts))


def test_a_text_longer_than_the_budget_runs_in_one_pass(model_of: Load) -> None:
    model = model_of("bert")
    requests = [request(uid, text(length), EmbedTask(pooling="mean")) for uid, length in enumerate((3, 50, 4))]
    engine = build(model, max_num_batched_tokens=10, max_num_seqs=4)
    assert run(engine, requests) == alone(model, requests)


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_an_encoder_decoder_says_what_transformers_says(model_of: Load, name: str, tmp_path: Path) -> None:
    model = model_of(name)
    theirs = tiny.theirs(tiny.make_variant(name, tmp_path), torch.float32)
    start = model.config.decoder_start_token_id
    assert start is not None
    requests, expected = [], {}
    for uid in range(6):
        encoded, decoded = text(random.randrange(2, 30)), [start, *text(uid % 3)]
        requests.append(request(uid, decoded, generate(12, ignore_eos=True), encoded=encoded))
        expected[uid] = decoded.copy()
        with torch.inference_mode():
            for _ in range(12):
                logits = theirs(
                    input_ids=torch.tensor([encoded]), decoder_input_ids=torch.tensor([expected[uid]])
                ).logits
                expected[uid].append(int(logits[0, -1].argmax()))
    tight = build(model, num_blocks=22, max_num_batched_tokens=20, max_num_seqs=6)
    for engine in (build(model), tight):
        for uid, answer in run(engine, requests).items():
            assert answer.tokens == expected[uid][-12:]


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_prefix_hits_of_a_decoder_need_the_same_text_encoded(model_of: Load, name: str) -> None:
    model = model_of(name)
    decoded, encoded, other = text(20), text(15), text(15)
    engine = build(model)
    requests = [
        request(uid, decoded, generate(5, logprobs=3, ignore_eos=True), encoded=words)
        for uid, words in enumerate((encoded, other, encoded))
    ]
    hits = []
    for each in requests:
        assert run(engine, [each]) == alone(model, [each])
        hits.append(engine.stats().prefix_cache_hits_total)
    assert hits[0] == hits[1] == 0
    assert hits[2] > 0
