"""On a CPU every family answers each request with the same bits alone and in a crowd, whatever is asked."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.transformer import Transformer
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    HeadScoresTask,
    LensTask,
    Task,
)
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import alone, build, everything, generate, load, request, run
from tests.server.engine.test_batch_invariance import assert_same


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_family_answers_a_crowd_as_each_alone(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """All at once: arrivals while others run, small chunks, a cache too small for all, beginnings in common."""
    with num_threads(random.choice((1, 2))):
        _answers_alike(name, dtype, tmp_path)


def _answers_alike(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = load(tiny.make_variant(name, tmp_path), dtype)
    crowd = _crowd_of(model)
    expected = alone(model, crowd)
    config = model.config
    tight = build(
        model,
        num_blocks=34 if config.kind == "decoder" else 90,
        max_num_seqs=random.randrange(3, 9),
        max_num_batched_tokens=random.choice((9, 40, 200)),
    )
    arrivals = sorted(random.randrange(9) for _ in crowd)
    order = random.sample(crowd, len(crowd))
    assert_same(run(tight, order, arrivals=arrivals), expected)
    again = [replace(each, uid=each.uid + 100) for each in order]
    found = run(tight, again)
    assert_same({uid - 100: answer for uid, answer in found.items()}, expected)


def _crowd_of(model: Transformer) -> list[EngineRequest]:
    """Requests of each kind that the model can answer, with prompts drawn afresh that begin alike."""
    config, pairs = model.config, ((0, 1), (1, 0))
    tasks: list[Task] = [everything(config), AttentionTask(capture=AttentionCapture(pairs=pairs))]
    if config.kind == "encoder":
        part = AttentionCapture(pairs=pairs, part="encoder", resize=5)
        tasks = [everything(config), AttentionTask(capture=part)]
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none"), EmbedTask(pooling="cls", layer=1)]
    else:
        looking = AttentionCapture(pairs=pairs)
        tasks += [
            generate(9, logprobs=4, prompt_logprobs=2, ignore_eos=True),
            generate(24, temperature=0.9, seed=7, top_p=0.9, ignore_eos=True),
            generate(7, attention=looking, attention_prompt=True, ignore_eos=True),
            LensTask(layers=(0, 1, 2), positions=(0, 5), top_k=3),
            HeadScoresTask(pairs=pairs, offsets=(1,)),
        ]
    if config.kind == "decoder":
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none", layer=1)]
    begin = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(25)]

    def words() -> list[int]:
        return (begin + [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(60)])[: random.randrange(8, 85)]

    return [request(uid, words(), task, encoded=words() if config.encoder else ()) for uid, task in enumerate(tasks)]
