"""Int8 weights: the numbers they represent, and little precision lost."""

from pathlib import Path

import pytest
import torch

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import Activation
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.layers.dense_weight import activate
from lightwell.model.layers.linear import Linear
from lightwell.model.loading.loader import load_model
from tests import tiny
from tests.support.accuracy import KINDS, accuracies

DTYPES = (torch.float32, torch.bfloat16)
ACTIVATIONS: tuple[Activation | None, ...] = (None, "silu", "gelu", "gelu_tanh", "relu")
FABLES = Path(__file__).resolve().parents[2] / "model" / "fables"
TEXT = """Once upon a time there was a miller who had three sons, a mill, a donkey and a cat. When he lay dying he
called them to his bed and said: The eldest shall have the mill, the second the donkey, and the youngest the
cat. So the two elder brothers went away together, and the youngest sat down upon a stone and wept. What shall
I do with a cat? said he. I may have a pair of gloves made of its fur, and then I shall have nothing. But the
cat had heard it all, and said: You need not kill me for a pair of bad gloves. Only have some boots made for
me, so that I may go out and be seen among the people, and you shall soon be helped. The young man wondered to
hear the cat speak, but as the shoemaker was just going by, he called him in, and had the boots made. When
they were ready the cat put them on, took a sack, filled it with corn, tied a string round the mouth of it,
threw it over his back, and walked out of the door upon two legs like a man.
"""


def dequantized(weight: torch.Tensor) -> torch.Tensor:
    """Return [out, in] float64: 255 equal steps from the largest of each output to its negative. No output may be 0."""
    steps = weight.float().abs().amax(1, keepdim=True) / 127
    return (weight.float() / steps).round().double() * steps.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 200])
def test_a_product_is_that_of_the_dequantised_weight(
    rows: int, activation: Activation | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    weight, bias = (torch.randn(90, 70) / 8).to(dtype), torch.randn(90).to(dtype)
    x = torch.randn(rows, 70).to(dtype)
    layer = Linear(weight, bias, quantize="int8", activation=activation)
    assert layer.native
    before = x.double() @ dequantized(weight).T
    exact = before + bias.double()
    after = exact if activation is None else activate(exact, activation)
    atol, rtol = (2e-6, 2e-6) if dtype == torch.float32 else (1e-3, 4e-3)
    torch.testing.assert_close(layer(x).double(), after, atol=atol, rtol=rtol)
    torch.testing.assert_close(layer.before_activation(x).double(), exact, atol=atol, rtol=rtol)
    torch.testing.assert_close(layer.product(x).double(), before, atol=atol, rtol=rtol)


def test_a_weight_moves_by_half_a_step_at_most() -> None:
    weight = torch.randn(50, 80) * torch.logspace(-6, 6, 50)[:, None]
    weight[7] = 0
    for layer in (Linear(weight, quantize="int8"), Linear(weight, quantize="int8", kernels=KernelConfig("torch"))):
        moved = (layer.to_dense() - weight).abs()
        assert (moved <= weight.abs().amax(1, keepdim=True) * (0.5 / 127 + 1e-6)).all()
        assert moved.max() > 0
        assert not layer.to_dense()[7].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_refused(value: float) -> None:
    weight = torch.ones(4, 6)
    weight[1, 2] = value
    with pytest.raises(ValueError, match=r"int8 .*\[4, 6\].*infinite numbers or NaN"):
        Linear(weight, quantize="int8")


def test_float16_is_dequantised_for_each_product() -> None:
    weight, x = torch.randn(30, 50).half(), torch.randn(9, 50).half()
    layer = Linear(weight, quantize="int8")
    assert not layer.native
    torch.testing.assert_close(layer(x).double(), x.double() @ dequantized(weight).T, atol=0.03, rtol=0.01)


@pytest.mark.parametrize("name", ["head.weight", "layers.0.qkv.weight", "layers.1.down.weight"])
def test_the_weights_that_are_shown_are_those_that_are_multiplied_by(name: str, tmp_path: Path) -> None:
    folder = tiny.make("llama", tmp_path)
    config, cpu = read_config(folder), torch.device("cpu")
    exact = LiveWeights(load_model(folder, config, torch.float32, cpu))(name)
    model = load_model(folder, config, torch.float32, cpu, quantize="int8")
    shown = LiveWeights(model)(name)
    assert exact is not None
    assert shown is not None
    assert not torch.equal(shown, exact)
    torch.testing.assert_close(shown.double(), dequantized(exact), atol=1e-6, rtol=1e-6)
    if name == "head.weight":
        hidden = torch.randn(5, config.hidden_size)
        torch.testing.assert_close(model.logits(hidden), hidden @ shown.T, atol=1e-4, rtol=1e-4)
        assert torch.equal(model.tokens.to_dense(), load_weights(folder, config, torch.float32, cpu)["embed.weight"])


def test_quantising_costs_the_built_in_model_less_than_a_hundredth_of_its_perplexity() -> None:
    found = accuracies(FABLES, TEXT, num_tokens=400)
    exact = found[KINDS[0]]
    assert exact.num_tokens > 200
    for kind in KINDS:
        assert found[kind].perplexity == pytest.approx(exact.perplexity, rel=0.01), kind
    assert 0 < found[("float32", "int8")].largest_difference < 1
