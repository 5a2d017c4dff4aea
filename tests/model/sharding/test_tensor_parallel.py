"""One network on two ranks computes the numbers of one process, point by point, with every capture and change.

The other rank is a real process, connected through gloo. It is started once and reads one checkpoint after another.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightwell.model.batch import Batch
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.hooks.hooks import Change, Hooks, Read
from lightwell.model.hooks.points import Stack
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.leader import LeadingTransformer, load_leading
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import shares_of
from lightwell.model.sharding.split import check_split, why_not_split
from lightwell.server.engine.tensor_parallel.ranks import Ranks
from tests import tiny
from tests.invariance import num_threads
from tests.model.watching import Edit, Watched, points, run, token_ids
from tests.network import BLOCK_SIZE, CPU, logits_alone, look_at_everything, worst

EVEN = {"gpt_neox": {"num_attention_heads": 4, "hidden_size": 64}}
"""Options that set a family's number of heads so that two ranks can share them."""
ALIKE = ("llama", "llama-gelu", "gpt2-untied", "gpt2-relu-unscaled", *(f"llama-{name}" for name in tiny.ROPE_VARIANTS))
WHOLE = (
    "qwen2_moe", "qwen3_moe", "olmoe", "mixtral", "gpt_oss", "granite4-experts", "lfm2", "qwen3_5", "gemma4",
    "gemma4-e2b", "gemma4-experts", "gemma3n",
)  # fmt: skip
"""Families that are not divided."""
NAMES = [name for name in tiny.VARIANTS if name not in (*ALIKE, *WHOLE)]
"""Variants of every family that can be sharded, without variants that differ only in unsharded parts."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    lost: list[str] = []
    with num_threads(1):
        found = Ranks.start(2, CPU, on_loss=lost.append)
        yield found
        found.close()
    assert not lost


def make(name: str, path: Path) -> Path:
    return tiny.make_variant(name, path, **EVEN.get(name.partition("-")[0], {}))


def load_both(folder: Path, dtype: torch.dtype, ranks: Ranks) -> tuple[Transformer, LeadingTransformer]:
    config = read_config(folder)
    together = load_leading(folder, config, dtype, CPU, ranks.group, ranks.send, max_model_len=tiny.CONTEXT)
    ranks.wait_loaded()
    return load_model(folder, config, dtype, CPU, max_model_len=tiny.CONTEXT), together


@pytest.mark.parametrize("name", NAMES)
def test_every_point_equals_one_process(name: str, ranks: Ranks, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    tokens, encoder_tokens = token_ids(50), token_ids(43) if read_config(folder).encoder else []
    one, two = load_both(folder, torch.float64, ranks)
    assert (
        worst(look_at_everything(two, tokens, encoder_tokens), look_at_everything(one, tokens, encoder_tokens)) < 1e-10
    )
    one, two = load_both(folder, torch.float32, ranks)
    expected = look_at_everything(one, tokens, encoder_tokens)
    found = look_at_everything(two, tokens, encoder_tokens, chunk=1000 if one.config.kind == "encoder" else 23)
    assert worst(found, expected, "hook_pattern") <= 1e-5
    assert worst(found, expected, "logits") <= 1e-4
    assert worst(found, expected, "hook_out") <= 1e-4


@pytest.mark.every_family
@pytest.mark.parametrize("name", ["llama-mqa-untied", "olmo2", "gpt_neox", "bert", "t5-gated-untied"])
def test_changes_act_as_in_one_process(name: str, ranks: Ranks, tmp_path: Path) -> None:
    one, two = load_both(make(name, tmp_path), torch.float64, ranks)
    changed = changed_everywhere(one)
    expected, found = run(one, [changed], chunk=9)[0], run(two, [changed], chunk=9)[0]
    assert expected.points.keys() == found.points.keys()
    for key, numbers in expected.points.items():
        assert (numbers - found.points[key]).abs().max() < 1e-10, key
    for at, numbers in expected.attention.items():
        assert torch.equal(numbers.isinf(), found.attention[at].isinf())
        assert (numbers - found.attention[at]).nan_to_num().abs().max() < 1e-10, at
    assert (expected.hidden - found.hidden).abs().max() < 1e-10
    plain = run(one, [replace(changed, edits={}, map_edits={})], chunk=9)[0]
    assert (expected.hidden - plain.hidden).abs().max() > 0.1


def last_stack(model: Transformer) -> Stack:
    return "encoder" if model.config.kind == "encoder" else "decoder"


def changed_everywhere(model: Transformer) -> Watched:
    """Return a sequence with every changeable point of a layer changed, including scores and patterns of some heads,
    and with captures at every point, so that an error at one point shows there.
    """
    config, stack = model.config, last_stack(model)
    places = [(point, layer) for point, layer in points(model, stack)]

    def edit(x: torch.Tensor) -> torch.Tensor:  # of each head and neuron another
        return 0.75 * x + 0.05 * torch.arange(x[0].numel(), dtype=x.dtype).view(x[0].shape).remainder(7)

    map_edits: dict[tuple[str, int, bool], Edit] = {}
    for cross in (False, True)[: 1 + config.cross_attention]:
        map_edits |= {("scores", 0, cross): lambda x: 3 * x, ("pattern", 1, cross): lambda x: x / 2}
    return Watched(
        token_ids(23),
        token_ids(17) if config.encoder else [],
        reads=[(point.name, layer) for point, layer in places],
        kinds=("pattern", "scores"),
        edits={(point.name, layer): edit for point, layer in places if point.changeable and layer in (None, 1)},
        map_edits=map_edits,
        rows=range(3, 19),
        heads=(1, 2),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "bert"])
def test_looking_and_neighbours_do_not_change_a_bit(
    name: str, dtype: torch.dtype, ranks: Ranks, tmp_path: Path
) -> None:
    _, two = load_both(tiny.make_variant(name, tmp_path), dtype, ranks)
    crowd = [Watched(token_ids(count)) for count in (9, 31, 14)]
    alone = [run(two, [each])[0].hidden for each in crowd]
    stack = last_stack(two)
    crowd[1] = replace(crowd[1], reads=[(p.name, i) for p, i in points(two, stack)], kinds=("pattern",))
    for seen, hidden in zip(run(two, crowd), alone, strict=True):
        assert torch.equal(seen.hidden, hidden)
    if two.config.kind == "decoder":
        tokens = token_ids(40)
        assert torch.equal(logits_alone(two, tokens, chunk=6), logits_alone(two, tokens))


def test_a_wish_that_fails_leaves_all_ranks_in_step(ranks: Ranks, tmp_path: Path) -> None:
    one, two = load_both(tiny.make_variant("llama-gqa", tmp_path), torch.float32, ranks)
    tokens = token_ids(12)

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise MemoryError("there is no room for it")

    def forward(hooks: Hooks | None) -> torch.Tensor:
        cache = KVCache(two.cache_config, 8, BLOCK_SIZE, two.dtype, CPU)
        batch = Batch.unchunked([tokens], BLOCK_SIZE, CPU, [two.config.num_layers])
        return two.logits(two.forward(batch, cache, hooks))

    for hooks in (
        Hooks([Read("attn.hook_q", 0, range(3), None, fail)]),
        Hooks(changes=[Change("attn.hook_z", 1, range(3), (2,), fail)]),
    ):
        with pytest.raises(MemoryError, match="no room"):
            forward(hooks)
        torch.testing.assert_close(forward(None), logits_alone(one, tokens), atol=1e-4, rtol=0)


def test_each_rank_holds_its_share_of_what_is_large(ranks: Ranks, tmp_path: Path) -> None:
    one, two = load_both(tiny.make_variant("llama-gqa", tmp_path), torch.float64, ranks)
    assert one.decoder is not None
    assert two.decoder is not None
    assert two.head is not None
    ours, whole = (model.decoder.blocks[0] for model in (two, one))
    for name in ("qkv", "attn_out", "up", "down"):
        assert 2 * ours.linears[name].to_dense().numel() == whole.linears[name].to_dense().numel()
    assert two.tokens.to_dense().shape[0] == -(-one.config.vocab_size // 2)
    assert two.head.to_dense().shape[0] == -(-one.config.vocab_size // 2)
    assert 2 * KVCache(two.cache_config, 3, 8, two.dtype, CPU).layers[0].keys.numel() == (
        KVCache(one.cache_config, 3, 8, one.dtype, CPU).layers[0].keys.numel()
    )


def test_what_cannot_be_shared_is_refused_with_what_can(tmp_path: Path) -> None:
    config = read_config(tiny.make_variant("gpt_neox", tmp_path))
    with pytest.raises(ModelLoadError, match=r"--tensor-parallel 2: GPTNeoX.* has 3 attention heads.*; 1 is accepted"):
        shares_of(config, Group(0, 2))
    mixed = read_config(tiny.make_variant("qwen3_moe", tmp_path / "mixed"))
    with pytest.raises(ModelLoadError, match=r"Qwen3Moe.* has experts, which are not divided; 1 is accepted"):
        shares_of(mixed, Group(0, 2))
    grouped = replace(config, num_heads=12, num_kv_heads=4, intermediate_size=96)
    assert [n for n in range(1, 13) if why_not_split(grouped, n) is None] == [1, 2, 4, 12]


def test_the_number_told_is_found_at_once_and_goes_with_both_stacks(tmp_path: Path) -> None:
    one = replace(read_config(tiny.make_variant("llama", tmp_path)), vocab_size=50_000)
    many = replace(one, num_heads=40, num_kv_heads=40, intermediate_size=13_824)
    with pytest.raises(ModelLoadError, match=r"40 attention heads, which 64 does not divide; .*; 8 is accepted$"):
        check_split(many, 64)
    encoder = replace(one, num_heads=6, num_kv_heads=6, intermediate_size=96)
    both = replace(one, num_heads=12, num_kv_heads=12, intermediate_size=96, encoder=encoder)
    with pytest.raises(ModelLoadError, match=r"12 attention heads, which 5 does not divide; .*; 3 is accepted$"):
        check_split(both, 5)
    with pytest.raises(ModelLoadError, match=r"has 6 attention heads, which 4 does not divide; .*; 3 is accepted$"):
        check_split(both, 4)


def test_processes_on_gpus_connect_when_they_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that they do not connect only at the first pass, when the file through which they find each other is
    gone.
    """
    message: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **named: message.append(named))
    for device in (torch.device("cuda", 1), CPU):
        Group.join(tmp_path / "store", 1, 2, device)
    assert [each["device_id"] for each in message] == [torch.device("cuda", 1), None]
