"""Captures and edits of a running network: the same in chunks and next to other sequences, and the effects of an edit.

tests/server/engine/captures/test_interventions.py has the changes of maps, and sequences that no edit may reach.
"""

import pytest
import torch

from lightwell.model.hooks.point_names import stacks
from lightwell.model.layers.linear import Linear
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.model.watching import Edit, Key, Watched, load, points, run, token_ids

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


@pytest.mark.parametrize("model", CUT, indirect=True)
def test_a_change_acts_the_same_in_any_chunks(model: Transformer) -> None:
    each = sequence(model, 23)
    for key in [key for key in keys(model, changeable=True) if key[1] in (None, 1)]:  # layers are alike
        each.edits = {key: lambda x: 0.5 * x + 0.25}
        assert torch.equal(run(model, [each])[0].hidden, run(model, [each], chunk=5)[0].hidden), key


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
