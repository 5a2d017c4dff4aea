"""The network against transformers (eager) and against the slow reference, for every kind of checkpoint."""

from pathlib import Path

import pytest
import torch
import transformers

from model.batch import Batch, Span
from model.capture import AttentionTap, ResidualTap, Taps
from model.checkpoint import load_weights
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.loader import load_decoder
from model.registry import read_config
from tests import reference, tiny

CPU = torch.device("cpu")
BLOCK = 8


@pytest.fixture(scope="module", params=[name for name in tiny.DECODERS if name.startswith(("llama", "gpt2"))])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(params=["whole", "chunks of 7", "one by one"])
def chunk(request: pytest.FixtureRequest) -> int:
    return {"whole": 1000, "chunks of 7": 7, "one by one": 1}[request.param]


class Seen:
    """Everything the network hands out for one sequence, gathered over its chunks."""

    def __init__(self, model: Decoder, tokens: list[int], chunk: int, kind: str = "pattern") -> None:
        config = model.config
        heads = list(range(config.num_heads))
        cache = KVCache(config, 40, BLOCK, model.dtype, CPU)
        table = torch.randperm(39)[: -(-len(tokens) // BLOCK)].add(1).tolist()
        wide = torch.float64 if model.dtype == torch.float64 else torch.float32
        shape = (config.num_heads, len(tokens), len(tokens))
        self.attention = [torch.zeros(shape, dtype=wide) for _ in range(config.num_layers)]
        self.hidden: list[list[torch.Tensor]] = [[] for _ in range(config.num_layers + 1)]
        logits = []
        for start in range(0, len(tokens), chunk):
            rows = len(tokens[start : start + chunk])

            def keep(layer: int, i: int, found: torch.Tensor, start: int = start) -> None:
                self.attention[layer][:, start + i : start + i + found.shape[1], : found.shape[2]] = found

            attention = AttentionTap(
                0, range(rows), range(start, start + rows), dict.fromkeys(range(config.num_layers), heads), kind, keep
            )
            residual = [ResidualTap(i, 0, rows, self.hidden[i].append) for i in range(config.num_layers)]
            residual.append(ResidualTap(None, 0, rows, self.hidden[-1].append))
            batch = Batch([Span(tokens[start : start + rows], start, table, config.num_layers)], BLOCK, CPU)
            logits.append(model.logits(model.forward(batch, cache, Taps([attention], residual))))
        self.logits = torch.cat(logits)
        self.hidden_states = [torch.cat(pieces) for pieces in self.hidden]


def prompt() -> list[int]:
    return [0, *torch.randint(2, tiny.VOCAB_SIZE, (58,)).tolist()]


def test_float32_equals_transformers(folder: Path, chunk: int) -> None:
    tokens = prompt()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens]), output_attentions=True, output_hidden_states=True)
    model = load_decoder(folder, read_config(folder), torch.float32, CPU)
    ours = Seen(model, tokens, chunk)
    assert (ours.logits - expected.logits[0]).abs().max() <= 1e-4
    for mine, other in zip(ours.attention, expected.attentions, strict=True):
        assert (mine - other[0]).abs().max() <= 1e-5
    for hidden, other in zip(ours.hidden_states, expected.hidden_states, strict=True):
        assert (hidden - other[0]).abs().max() <= 1e-4


def test_float64_equals_the_reference(folder: Path, chunk: int) -> None:
    tokens = prompt()
    config = read_config(folder)
    expected = reference.run(config, load_weights(folder, config, torch.float64), tokens)
    ours = Seen(load_decoder(folder, config, torch.float64, CPU), tokens, chunk)
    assert (ours.logits - expected.logits).abs().max() <= 1e-10
    for mine, layer in zip(ours.attention, expected.layers, strict=True):
        assert (mine - layer.pattern).abs().max() <= 1e-10
    for hidden, other in zip(ours.hidden_states, expected.hidden_states, strict=True):
        assert (hidden - other).abs().max() <= 1e-10


def test_scores_are_the_log_of_the_pattern_up_to_a_constant_a_row(folder: Path) -> None:
    tokens = prompt()
    model = load_decoder(folder, read_config(folder), torch.float32, CPU)
    scores, pattern = Seen(model, tokens, 1000, "scores").attention, Seen(model, tokens, 1000).attention
    unseen = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for mine, other in zip(scores, pattern, strict=True):
        assert mine[:, unseen].eq(float("-inf")).all()
        assert (torch.log_softmax(mine, -1).exp() - other).abs().max() <= 1e-5


def test_dots_times_the_scale_are_the_scores(folder: Path) -> None:
    tokens = prompt()
    config = read_config(folder)
    model = load_decoder(folder, config, torch.float32, CPU)
    scores, dots = Seen(model, tokens, 1000, "scores").attention, Seen(model, tokens, 1000, "dots").attention
    for mine, other in zip(scores, dots, strict=True):
        torch.testing.assert_close(other * config.attention_scale, mine)


def test_a_sequence_that_needs_fewer_layers_leaves_the_others_as_they_were(folder: Path) -> None:
    config = read_config(folder)
    model = load_decoder(folder, config, torch.float32, CPU)
    first, second = prompt()[:20], prompt()[:13]
    both = KVCache(config, 40, BLOCK, torch.float32, CPU)
    spans = [Span(first, 0, [3, 1, 2], config.num_layers), Span(second, 0, [5, 4], 1)]
    left_early: list[torch.Tensor] = []
    tap = ResidualTap(1, len(first), len(first) + len(second), left_early.append)
    together = model.forward(Batch(spans, BLOCK, CPU), both, Taps(residual=[tap]))
    cache = KVCache(config, 40, BLOCK, torch.float32, CPU)
    assert torch.equal(together, model.forward(Batch(spans[:1], BLOCK, CPU), cache))
    assert torch.equal(left_early[0], _after_first_block(model, second))


def test_spans_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="most layers first"):
        Batch([Span([1], 0, [1], 1), Span([1], 0, [2], 2)], BLOCK, CPU)


def _after_first_block(model: Decoder, tokens: list[int]) -> torch.Tensor:
    found: list[torch.Tensor] = []
    cache = KVCache(model.config, 40, BLOCK, model.dtype, CPU)
    batch = Batch([Span(tokens, 0, [1, 2], model.config.num_layers)], BLOCK, CPU)
    model.forward(batch, cache, Taps(residual=[ResidualTap(1, 0, len(tokens), found.append)]))
    return found[0]
