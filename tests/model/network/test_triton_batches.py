"""With a card's kernels and `batch_invariant`, a row's logits have the same bits however the rows are batched."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from msgspec.structs import replace

from lightwell.model.batch import Batch, Span
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda import matmul, paged_attention
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask, ClassifyTask
from tests import tiny
from tests.model.kernels.cuda.card import DEVICE, DTYPES, fresh_draw
from tests.server.engine.driving import alone, assert_same, build, load, request, run
from tests.support.interpreted_product import multiply_in_one_order

pytestmark = [] if IS_INTERPRETED else [pytest.mark.gpu]
BLOCK, BLOCKS = 16, 2
"""Keys of a block, and blocks of a sequence."""
LAYERS = 1 if IS_INTERPRETED else 2
"""Layers of a network that is interpreted slowly."""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut products into pieces with programs of their own for up to 4 rows, and use larger tiles for more rows."""
    for name, number in {"FILL": 4, "LEAST_PIECE": 16, "_MULTIPLE": 64, "FEW_ROWS": 4}.items():
        monkeypatch.setattr(matmul, name, number)
    assert matmul.piece_length(64, 136) == 128
    if IS_INTERPRETED:
        monkeypatch.setattr(paged_attention, "SHARES", 4)
        multiply_in_one_order(monkeypatch)


class Run:
    """Sequences on their way through a network, each with blocks of its own."""

    def __init__(self, model: Transformer, sequences: list[list[int]]) -> None:
        self.model = model
        self.sequences = sequences
        self.done = [0 for _ in sequences]
        self.hidden: list[list[Tensor]] = [[] for _ in sequences]
        num_blocks = 1 + BLOCKS * len(sequences)
        self.cache = KVCache(model.cache_config, num_blocks, BLOCK, model.dtype, DEVICE, keys_in_rows=True)

    def step(self, counts: dict[int, int]) -> None:
        """Run the next `counts` tokens of some sequences, in this order."""
        spans = []
        for i, count in counts.items():
            start, first = self.done[i], 1 + BLOCKS * i
            tokens = self.sequences[i][start : start + count]
            spans.append(Span(tokens, start, range(first, first + BLOCKS), self.model.config.num_layers))
            self.done[i] += len(tokens)
        hidden = self.model.forward(Batch(spans, BLOCK, DEVICE), self.cache)
        for i, rows in zip(counts, torch.split(hidden, [span.num_rows for span in spans]), strict=True):
            self.hidden[i].append(rows)

    def left(self) -> dict[int, int]:
        """Return the number of tokens left in each sequence that has any left."""
        return {
            i: len(all_) - done
            for i, (all_, done) in enumerate(zip(self.sequences, self.done, strict=True))
            if all_ != all_[:done]
        }

    def logits(self, i: int) -> Tensor:
        return self.model.logits(torch.cat(self.hidden[i]))


def test_a_prompt_has_the_same_logits_whole_in_chunks_among_others_and_token_by_token(tmp_path: Path) -> None:
    rng = fresh_draw()
    model = load(
        tiny.make_variant("llama-gqa", tmp_path, intermediate_size=136, num_hidden_layers=LAYERS),
        rng.choice(DTYPES),
        DEVICE,
        kernels=KernelConfig("triton"),
        batch_invariant=True,
    )
    sequences = [
        [rng.randrange(2, tiny.VOCAB_SIZE) for _ in range(length)]
        for length in (rng.randint(17, 20), rng.randint(2, 8))
    ]
    expected = []
    for tokens in sequences:
        run = Run(model, [tokens])
        run.step({0: len(tokens)})
        expected.append(run.logits(0))
    singly = Run(model, sequences[:1])
    singly.step({0: len(sequences[0]) - 2})
    while singly.left():
        singly.step({0: 1})
    assert torch.equal(singly.logits(0), expected[0])
    crowd = Run(model, sequences)
    while left := crowd.left():
        chosen = rng.sample(list(left), rng.randint(1, len(left)))
        crowd.step({i: min(left[i], rng.choice((1, rng.randint(2, 12)))) for i in chosen})
    for i, logits in enumerate(expected):
        assert torch.equal(crowd.logits(i), logits)
    hidden = torch.cat([torch.cat(rows) for rows in crowd.hidden])
    order = torch.randperm(len(hidden))
    assert torch.equal(model.logits(hidden[order]), torch.cat(expected)[order])


def test_patterns_of_a_network_without_a_step_of_its_own_have_the_same_bits_in_pieces(tmp_path: Path) -> None:
    """Run its blocks one by one; hooks do not get their patterns from the kernels."""
    rng = fresh_draw()
    folder = tiny.make_variant("gemma3n", tmp_path)
    model = load(folder, rng.choice(DTYPES), DEVICE, kernels=KernelConfig("triton"), batch_invariant=True)
    assert model.decoder is not None
    assert model.decoder.gpu_program is None
    words = [rng.randrange(2, tiny.VOCAB_SIZE) for _ in range(21)]
    looking = [request(0, words, AttentionTask(capture=AttentionCapture(pairs=((0, 1), (1, 2)))))]
    (whole,) = alone(model, looking, block_size=BLOCK).values()
    engine = build(model, block_size=BLOCK, max_num_seqs=3, max_num_batched_tokens=rng.choice((5, 8)))
    (pieces,) = run(engine, looking).values()
    assert whole.tensors
    assert pieces == whole


def test_a_pair_of_texts_has_its_types_of_tokens_among_others_too(tmp_path: Path) -> None:
    folder = tiny.make_classifier("bert", tmp_path, num_hidden_layers=LAYERS)
    model = load(folder, torch.float32, DEVICE, kernels=KernelConfig("triton"), batch_invariant=True)
    prompt = list(range(5, 17))
    crowd = [request(uid, prompt, ClassifyTask()) for uid in range(2)]
    crowd[1] = replace(crowd[1], second_segment=9)
    found = run(build(model, block_size=BLOCK), crowd)
    assert_same(found, alone(model, crowd, block_size=BLOCK))
    types = (torch.arange(12) >= 9).long()[None]
    with torch.no_grad():
        expected = tiny.theirs(folder, torch.float32)(input_ids=torch.tensor([prompt]), token_type_ids=types).logits[0]
    assert abs(found[1].array("logits") - expected.numpy()).max() <= 1e-4
