"""Captures and edits of a running network: the captured values, the effects of an edit, and the unaffected
sequences.
"""

from collections.abc import Callable

import pytest
import torch

from model.hooks.point_names import stack_config, stacks
from model.layers.linear import Linear
from model.network.transformer import Transformer
from tests import tiny
from tests.model.watching import Edit, Key, Seen, Watched, load, points, run, token_ids

VARIANTS = (
    "llama-gqa", "llama-biases", "gemma2", "gemma3", "olmo2", "qwen3", "gpt2", "gpt_neox", "opt-post", "bert", "mpnet",
    "modernbert", "t5-gated-untied", "bart",
)  # fmt: skip
"""Variants with every placement of norms, every kind of mlp and attention."""
CUT = [name for name in VARIANTS if name not in tiny.ENCODERS]
"""The variants that may be cut into chunks."""


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return load(tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param)))


def sequence(model: Transformer, length: int) -> Watched:
    return Watched(token_ids(length), token_ids(21) if model.config.encoder else [])


def keys(model: Transformer, *, changeable: bool = False) -> list[Key]:
    found = points(model, stacks(model.config)[-1])
    return [(point.name, layer) for point, layer in found if point.changeable or not changeable]


def test_looking_changes_nothing_and_sees_the_same_in_chunks_beside_others(model: Transformer) -> None:
    quiet, other = sequence(model, 38), sequence(model, 25)
    watched = Watched(quiet.tokens, quiet.encoder_tokens, keys(model), ("pattern", "scores", "dots"))
    unseen, alone = run(model, [quiet])[0], run(model, [watched])[0]
    assert torch.equal(alone.hidden, unseen.hidden)
    among = run(model, [other, watched], chunk=7)[1]
    assert alone.points.keys() == among.points.keys() == set(keys(model))
    for key, found in alone.points.items():
        assert torch.equal(found, among.points[key]), key
    assert alone.attention.keys() == among.attention.keys()
    for name, found in alone.attention.items():
        assert torch.equal(found, among.attention[name]), name


def test_a_change_stays_with_its_own_rows_and_can_be_seen(model: Transformer) -> None:
    """Check each point that may be changed, in turn: set to noise in some rows of one sequence of three."""
    first, changed, last = (sequence(model, length) for length in (9, 17, 5))
    quiet = run(model, [first, changed, last])
    for key in keys(model, changeable=True):
        written: list[torch.Tensor] = []

        def edit(x: torch.Tensor, written: list[torch.Tensor] = written) -> torch.Tensor:
            written.append(torch.randn_like(x))
            return written[-1]

        changed.reads, changed.edits, changed.rows = [key], {key: edit}, range(4, 17)
        seen = run(model, [first, changed, last])
        assert torch.equal(seen[0].hidden, quiet[0].hidden), key
        assert torch.equal(seen[2].hidden, quiet[2].hidden), key
        assert torch.equal(seen[1].points[key][4:], written[0]), key
        if model.config.causal:
            assert torch.equal(seen[1].hidden[:4], quiet[1].hidden[:4]), key
        late = key[1] == stack_config(model.config, stacks(model.config)[-1]).num_layers - 1
        if not (late and key[0] in ("attn.hook_k", "attn.hook_v")):
            assert not torch.equal(seen[1].hidden[4:], quiet[1].hidden[4:]), key


@pytest.mark.parametrize("model", CUT, indirect=True)
def test_a_change_acts_the_same_in_any_chunks(model: Transformer) -> None:
    each = sequence(model, 23)
    for layer in {layer for _, layer in keys(model)}:
        changed = [key for key in keys(model, changeable=True) if key[1] == layer]
        each.edits = dict.fromkeys(changed, lambda x: 0.5 * x + 0.25)
        assert torch.equal(run(model, [each])[0].hidden, run(model, [each], chunk=5)[0].hidden), changed


def both(
    model: Transformer, one: dict[Key, Edit], other: dict[Key, Edit], key: Key
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values of a point after each of two interventions on the same sequence."""
    each = sequence(model, 19)
    found = []
    for each.edits in (one, other):
        each.reads = [key]
        found.append(run(model, [each])[0].points[key])
    return found[0], found[1]


def attentions(model: Transformer) -> list[str]:
    return ["attn", "cross_attn"] if model.config.cross_attention else ["attn"]


def test_taking_out_a_heads_result_is_taking_out_its_z(model: Transformer) -> None:
    def without_head(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.zeros_like(x[:, :1]), x[:, 1:]), 1)

    for name in attentions(model):
        out = ("hook_attn_out" if name == "attn" else "hook_cross_attn_out", 1)
        of_z: dict[Key, Edit] = {(f"{name}.hook_z", 1): without_head}
        of_result: dict[Key, Edit] = {(f"{name}.hook_result", 1): without_head}
        found, expected = both(model, of_result, of_z, out)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_looking_at_results_unpacks_no_weights(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against unpacking W_O in every step, which took most of a step's time."""

    def refuse(_: Linear) -> torch.Tensor:
        raise AssertionError("the weights were unpacked")

    monkeypatch.setattr(Linear, "to_dense", refuse)
    for name in attentions(model):
        each = sequence(model, 3)
        each.reads, each.edits = [(f"{name}.hook_result", 1)], {(f"{name}.hook_result", 1): torch.zeros_like}
        assert not run(model, [each])[0].points[f"{name}.hook_result", 1].any()


def test_mlp_points_follow_from_each_other(model: Transformer) -> None:
    if model.config.gated_mlp:
        found, expected = both(
            model,
            {("mlp.hook_pre_linear", 1): torch.zeros_like},
            {("mlp.hook_post", 1): torch.zeros_like},
            ("hook_mlp_out", 1),
        )
        assert torch.equal(found, expected)
    same, untouched = both(model, {("mlp.hook_pre", 1): torch.clone}, {}, ("hook_mlp_out", 1))
    torch.testing.assert_close(same, untouched, atol=1e-4, rtol=1e-4)  # the activation is torch's own on changed rows


def maps(model: Transformer) -> list[tuple[str, bool]]:
    return [("attn", False), ("cross_attn", True)] if model.config.cross_attention else [("attn", False)]


def with_maps(
    model: Transformer, each: Watched, edits: dict[str, Callable[[torch.Tensor], torch.Tensor]]
) -> list[Seen]:
    """Run `each` between two quiet ones, its last layer's maps of heads 0 and 2 changed in rows 3 ..: one run for
    each attention of the block.
    """
    layer = 1
    found = []
    for name, cross in maps(model):
        each.reads, each.kinds = [(f"{name}.hook_z", layer)], ("pattern", "scores", "dots")
        each.rows, each.heads = range(3, len(each.tokens)), (2, 0)
        each.map_edits = {(kind, layer, cross): edit for kind, edit in edits.items()}
        found.append(run(model, [sequence(model, 6), each, sequence(model, 4)])[1])
    return found


def test_a_changed_pattern_is_seen_and_mixes_the_values_anew(model: Transformer) -> None:
    each = sequence(model, 18)
    quiet = with_maps(model, each, {})
    changed = with_maps(model, each, {"pattern": torch.zeros_like})
    for (name, cross), before, after in zip(maps(model), quiet, changed, strict=True):
        pattern, z = after.attention["pattern", 1, cross], after.points[f"{name}.hook_z", 1]
        assert not pattern[[0, 2], 3:].any()
        assert not z[3:, [0, 2]].any()
        others = [head for head in range(len(pattern)) if head not in (0, 2)]
        assert torch.equal(pattern[others], before.attention["pattern", 1, cross][others])
        assert torch.equal(z[:, others], before.points[f"{name}.hook_z", 1][:, others])
        assert torch.equal(z[:3], before.points[f"{name}.hook_z", 1][:3])
        assert torch.equal(after.attention["dots", 1, cross], before.attention["dots", 1, cross])


def test_scores_left_as_they_are_give_the_same_bits(model: Transformer) -> None:
    each = sequence(model, 18)
    quiet, same = with_maps(model, each, {}), with_maps(model, each, {"scores": torch.clone, "pattern": torch.clone})
    for before, after in zip(quiet, same, strict=True):
        assert torch.equal(before.hidden, after.hidden)
        for name, found in before.attention.items():
            assert torch.equal(found, after.attention[name]), name


def test_scores_that_leave_one_key_put_all_weight_on_it(model: Transformer) -> None:
    """Check an attention temperature of 0."""

    def largest_alone(scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, float("-inf")).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)

    for (_, cross), seen in zip(
        maps(model), with_maps(model, sequence(model, 18), {"scores": largest_alone}), strict=True
    ):
        pattern = seen.attention["pattern", 1, cross][[0, 2], 3:]
        assert torch.equal(pattern.amax(-1), torch.ones(pattern.shape[:2]))
        assert torch.equal(pattern.sum(-1), torch.ones(pattern.shape[:2]))
