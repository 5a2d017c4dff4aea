"""Answers about the weights, against the plain definitions on the checkpoint's own tensors."""

import gc
import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from model.analysis.circuits import Head
from model.analysis.live_weights import LiveWeights
from model.analysis.matrices import UnknownMatrix, find_matrix, names_of
from model.analysis.weight_geometry import BINS, QUANTILES, geometry
from model.analysis.weight_reader import WeightReader
from model.analysis.weights import answer
from model.checkpoint.registry import read_config
from model.checkpoint.weight_files import load_weights
from model.config import ModelConfig
from model.loading.loader import build_model
from tests import tiny
from tests.server.running import ROOT

Numbers = dict[str, np.ndarray]
SOME = ("llama-gqa", "gpt2", "gemma2", "olmo2", "bert", "t5-gated-untied", "bart", "opt-post")


@cache
def network(name: str) -> tuple[ModelConfig, dict[str, torch.Tensor], LiveWeights]:
    """Of a tiny checkpoint: its config, its weights as loaded, and those of a running, packed network."""
    folder = tiny.make_variant(name, Path(mkdtemp()))
    config = read_config(folder)
    weights = load_weights(folder, config, torch.float32)
    copies = {key: tensor.clone() for key, tensor in weights.items()}
    return config, weights, LiveWeights(build_model(config, copies, context=config.max_model_len))


def ask(name: str, question: str, **options: Any) -> Numbers:
    config, _, lookup = network(name)
    found = answer(config, lookup, question, options, lambda: None)
    return {key: tensor.numpy() for key, tensor in found.items()}


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def matrix_by_hand(name: str, full: str) -> np.ndarray:
    """TransformerLens's [in, out] matrix from the loaded tensors, spelt out."""
    config, weights, _ = network(name)
    stack, _, rest = full.rpartition("blocks.")
    own = config.encoder if stack == "encoder." and config.encoder is not None else config
    prefix = "encoder." if stack == "encoder." else ""
    if full.endswith("W_E"):
        return wide(weights["embed.weight"])
    if full.endswith("W_U"):
        return wide(weights.get("head.weight", weights["embed.weight"])).T
    if full.endswith("W_pos"):
        prefix = "encoder." if full.startswith("encoder.") else ""
        own = config.encoder if prefix and config.encoder is not None else config
        return wide(weights[f"{prefix}pos_embed.weight"])[own.position_offset :]
    layer, _, matrix = rest.partition(".")
    at = f"{prefix}layers.{layer}."
    q, kv = own.num_heads * own.head_dim, own.num_kv_heads * own.head_dim
    if matrix.startswith("mlp"):
        if matrix == "mlp.W_out":
            return wide(weights[f"{at}down.weight"]).T
        if not own.gated_mlp:
            return wide(weights[f"{at}up.weight"]).T
        fused = wide(weights[f"{at}gate_up.weight"])
        half = len(fused) // 2
        return (fused[:half] if matrix == "mlp.W_gate" else fused[half:]).T
    if matrix.startswith("cross"):
        table = {
            "W_Q": lambda: weights[f"{at}cross_q.weight"],
            "W_K": lambda: weights[f"{at}cross_kv.weight"][:kv],
            "W_V": lambda: weights[f"{at}cross_kv.weight"][kv:],
            "W_O": lambda: weights[f"{at}cross_out.weight"],
        }
    else:
        table = {
            "W_Q": lambda: weights[f"{at}qkv.weight"][:q],
            "W_K": lambda: weights[f"{at}qkv.weight"][q : q + kv],
            "W_V": lambda: weights[f"{at}qkv.weight"][q + kv :],
            "W_O": lambda: weights[f"{at}attn_out.weight"],
        }
    return wide(table[matrix.rpartition(".")[2]]()).T


@pytest.mark.parametrize("name", SOME)
def test_every_matrix_is_the_checkpoints_own(name: str) -> None:
    config, _, lookup = network(name)
    for pattern in names_of(config):
        full = pattern.format(layer=0)
        place = find_matrix(config, full)
        found = WeightReader(lookup).matrix(place).double().numpy()
        assert found.shape == place.shape, full
        np.testing.assert_array_equal(found, matrix_by_hand(name, full), err_msg=full)


def test_names_that_are_not_there_are_answered_with_those_that_are() -> None:
    config, _, _ = network("gpt2")
    for name in ("W_gate", "blocks.0.mlp.W_gate", "cross_attn.W_Q", "W_q", ""):
        with pytest.raises(UnknownMatrix, match=r"near ones are .*W_"):
            find_matrix(config, name, 0)
    with pytest.raises(UnknownMatrix, match="say which layer, 0 to"):
        find_matrix(config, "W_Q")
    with pytest.raises(UnknownMatrix, match="no layer 99"):
        find_matrix(config, "blocks.99.attn.W_Q")
    assert find_matrix(config, "W_Q", 1) == find_matrix(config, "blocks.1.attn.W_Q")


def cosines_by_hand(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = unit @ unit.T
    return gram, gram[np.triu_indices(len(gram), 1)]


@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("matrix", ["embed.W_E", "blocks.1.mlp.W_in"])
def test_geometry_is_that_of_the_whole_gram_matrix(matrix: str, axis: str) -> None:
    found = ask("llama-gqa", "geometry", matrix=matrix, axis=axis)
    by_hand = matrix_by_hand("llama-gqa", matrix)
    vectors = by_hand if axis == "rows" else by_hand.T
    gram, cosines = cosines_by_hand(vectors)
    assert found["counts"].tolist() == [*vectors.shape, 0, len(cosines), len(cosines), 0]
    expected = [cosines.mean(), cosines.std(), cosines.min(), cosines.max()]
    np.testing.assert_allclose(found["moments"], expected, atol=1e-6)
    np.testing.assert_allclose(found["quantiles"], np.quantile(cosines, QUANTILES, method="inverted_cdf"), atol=6e-4)
    edges = np.linspace(-1, 1, BINS + 1)
    assert np.abs(found["histogram"] - np.histogram(cosines, edges)[0]).sum() <= 4  # on an edge
    off = np.abs(gram - np.eye(len(gram)))  # the largest deviation of the Gram matrix from the identity
    np.testing.assert_allclose(abs(found["closest"][0]), off.max(), atol=1e-6)
    for value, (i, j) in zip(found["closest"], found["closest_pairs"], strict=True):
        np.testing.assert_allclose(value, gram[i, j], atol=1e-6)
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)


def test_geometry_of_one_head() -> None:
    config, _, _ = network("llama-gqa")
    d = config.head_dim
    found = ask("llama-gqa", "geometry", matrix="blocks.0.attn.W_K", axis="columns", head=1)
    by_hand = matrix_by_hand("llama-gqa", "blocks.0.attn.W_K")[:, d : 2 * d]
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)
    found = ask("llama-gqa", "geometry", matrix="blocks.0.attn.W_O", axis="rows", head=2)
    by_hand = matrix_by_hand("llama-gqa", "blocks.0.attn.W_O")[2 * d : 3 * d]
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)


def test_many_blocks_are_put_together_as_one() -> None:
    vectors = torch.randn(2500, 40, generator=torch.Generator().manual_seed(5))
    vectors[7] = 0.0
    found = {key: tensor.numpy() for key, tensor in geometry(vectors, lambda: None).items()}
    _, cosines = cosines_by_hand(np.delete(vectors.double().numpy(), 7, axis=0))
    assert found["counts"].tolist() == [2500, 40, 1, len(cosines), len(cosines), 0]
    np.testing.assert_allclose(found["moments"], [0, cosines.std(), cosines.min(), cosines.max()], atol=2e-4)
    assert found["histogram"].sum() == len(cosines)
    i, j = found["closest_pairs"][0]
    assert 7 not in found["closest_pairs"]
    pair = vectors[[i, j]].double().numpy()
    np.testing.assert_allclose(cosines_by_hand(pair)[1][0], found["closest"][0], atol=1e-6)
    np.testing.assert_allclose(abs(found["closest"][0]), np.abs(cosines).max(), atol=1e-6)


@pytest.mark.parametrize("dimension", [100, 768])
def test_random_directions_spread_by_one_over_the_root_of_the_dimension(dimension: int) -> None:
    # The standard deviation itself has a relative error of about sqrt(1 / (2 pairs)) = 0.0007 here.
    vectors = torch.randn(1500, dimension)
    mean, spread, *_ = geometry(vectors, lambda: None, spectrum=False)["moments"].tolist()
    assert spread == pytest.approx(1 / math.sqrt(dimension), rel=0.02)
    assert abs(mean) < 0.1 / math.sqrt(dimension)


def test_a_drawn_sample_tells_that_it_is_one_and_repeats_with_its_seed() -> None:
    vectors = torch.randn(300, 16)
    first, again, other = (geometry(vectors, lambda: None, max_pairs=5000, seed=seed) for seed in (3, 3, 4))
    assert first["counts"].tolist() == [300, 16, 0, 44850, 5000, 1]
    assert torch.equal(first["moments"], again["moments"])
    assert not torch.equal(first["moments"], other["moments"])
    assert first["moments"][1] == pytest.approx(0.25, rel=0.05)
    assert (first["closest_pairs"][:, 0] != first["closest_pairs"][:, 1]).all()


def test_all_pairs_hold_the_nearest_one_that_a_sample_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 1500 vectors are nearly one: 500 draws meet that pair once in 2000 tries, and the seed is fixed."""
    monkeypatch.setattr("model.analysis.weight_geometry.MAX_PAIRS", 1000)
    monkeypatch.setattr("model.analysis.weight_geometry.SAMPLED_PAIRS", 500)
    vectors = torch.randn(1500, 64, generator=torch.Generator().manual_seed(2))
    vectors[1400] = -3 * vectors[20] + 0.01 * vectors[21]
    _, cosines = cosines_by_hand(vectors.double().numpy())
    sampled, found = (geometry(vectors, lambda: None, max_pairs=pairs) for pairs in (None, "all"))
    assert sampled["counts"].tolist()[-2:] == [500, 1]
    assert abs(sampled["closest"][0]) < 0.9
    assert found["counts"].tolist()[-2:] == [len(cosines), 0]
    assert found["closest"][0] == pytest.approx(cosines.min(), abs=1e-6)
    assert found["closest_pairs"][0].tolist() == [20, 1400]


def test_no_n_times_n_matrix_is_ever_in_memory() -> None:
    """12000 x 12000 cosines are 576 MB; what is computed at a time is a thousand rows against a thousand."""
    code = (
        "import resource, torch\n"
        "from model.analysis.weight_geometry import geometry\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "torch.set_num_threads(1)\n"
        "vectors = torch.randn(12000, 16)\n"
        "geometry(vectors[:3000], lambda: None)\n"  # whatever torch loads for it is loaded
        "before = peak()\n"
        "found = geometry(vectors, lambda: None)\n"
        "assert found['counts'].tolist()[-2:] == [12000 * 11999 // 2, 0], 'all pairs were compared'\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200 << 20


def test_an_answer_stops_where_it_is_told_to() -> None:
    class Enough(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Enough

    with pytest.raises(Enough):
        geometry(torch.randn(5000, 8), check)
    assert calls == 4


def head_by_hand(name: str, layer: int, head: int, module: str = "attn") -> tuple[np.ndarray, ...]:
    """W_Q, W_K, W_V [d_model, D] and W_O [D, d_model] of one query head."""
    config, _, _ = network(name)
    size, group = config.head_dim, head // (config.num_heads // config.num_kv_heads)
    prefix = "decoder." if config.kind == "encoder-decoder" else ""

    def columns(matrix: str, index: int) -> np.ndarray:
        whole = matrix_by_hand(name, f"{prefix}blocks.{layer}.{module}.{matrix}")
        return whole[:, index * size : (index + 1) * size]

    w_o = matrix_by_hand(name, f"{prefix}blocks.{layer}.{module}.W_O")[head * size : (head + 1) * size]
    return columns("W_Q", head), columns("W_K", group), columns("W_V", group), w_o


def test_circuits_hold_one_head_at_a_time() -> None:
    """The float64 factors of all heads together are twice as large as the attention's weights, or four times."""
    config, _, lookup = network("llama-gqa")
    pairs = tuple((layer, head) for layer in range(config.num_layers) for head in range(config.num_heads))
    alive: list[int] = []

    def check() -> None:
        alive.append(sum(type(each) is Head for each in gc.get_objects()))

    before = sum(type(each) is Head for each in gc.get_objects())
    answer(config, lookup, "circuits", {"part": "decoder", "pairs": pairs}, check)
    assert max(alive) - before <= 1


@pytest.mark.parametrize(("name", "part"), [("llama-gqa", "decoder"), ("bert", "encoder"), ("bart", "cross")])
def test_circuits_have_the_spectra_of_the_whole_products(name: str, part: str) -> None:
    config, _, _ = network(name)
    pairs = [(0, 0), (1, config.num_heads - 1)]
    found = ask(name, "circuits", part=part, pairs=pairs)
    for i, (layer, head) in enumerate(pairs):
        w_q, w_k, w_v, w_o = head_by_hand(name, layer, head, "cross_attn" if part == "cross" else "attn")
        size = w_o.shape[0]
        expected = [np.linalg.svd(m, compute_uv=False) for m in (w_v @ w_o, w_q @ w_k.T)]
        np.testing.assert_allclose(found["ov.singular_values"][i], expected[0][:size], atol=1e-6)
        np.testing.assert_allclose(found["qk.singular_values"][i], expected[1][:size], atol=1e-6)
        assert expected[0][size:].max(initial=0.0) < 1e-6  # nothing was left out
        eigenvalues = found["ov.eigenvalues"][i][:, 0] + 1j * found["ov.eigenvalues"][i][:, 1]
        whole = np.linalg.eigvals(w_v @ w_o)
        np.testing.assert_allclose(np.sort(np.abs(eigenvalues))[::-1], np.sort(np.abs(whole))[::-1][:size], atol=1e-5)
        np.testing.assert_allclose(eigenvalues.sum().real, np.trace(w_v @ w_o), atol=1e-6)


def test_composition_is_that_of_the_whole_products() -> None:
    pairs = [(0, 1), (0, 3), (1, 0)]
    found = ask("llama-gqa", "circuits", part="decoder", pairs=pairs, compose=1)["composition"]
    for i, j in ((0, 2), (1, 2)):
        _, _, w_v, w_o = head_by_hand("llama-gqa", *pairs[i])
        l_q, l_k, l_v, l_o = head_by_hand("llama-gqa", *pairs[j])
        ov, qk = w_v @ w_o, l_q @ l_k.T
        norm = np.linalg.norm
        expected = [norm(ov @ m) / norm(ov) / norm(m) for m in (qk, qk.T, l_v @ l_o)]
        np.testing.assert_allclose(found[i, j], expected, atol=1e-8)
    assert not found[0, 1].any()  # of one layer: neither reads the other
    assert not found[2].any()


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma2", "olmo2", "opt-post", "t5-gated-untied", "bart"])
def test_what_heads_write_towards_a_logit(name: str) -> None:
    config, weights, _ = network(name)
    targets, pairs = (5, 17, 200), [(0, 1), (1, 0)]
    found = ask(name, "head_readout", part="decoder", pairs=pairs, targets=targets)
    # The logit of a stream, with the final norm's scale taken as 1, spelt out.
    unembed = wide(weights.get("head.weight", weights["embed.weight"]))
    if "embed_out.weight" in weights:
        unembed = unembed @ wide(weights["embed_out.weight"])

    def logit(stream: np.ndarray, token: int) -> float:
        x = stream - stream.mean() if config.final_norm and config.norm == "layernorm" else stream
        if config.final_norm:
            x = x * (wide(weights["final_norm.weight"]) + config.norm_weight_offset)
        return float(x @ unembed[token]) * config.logit_scale

    stream = np.random.default_rng(1).standard_normal(config.hidden_size)
    for t, token in enumerate(targets):
        assert found["direction"][:, t] @ stream == pytest.approx(logit(stream, token), rel=1e-4, abs=1e-4)
    beta = weights.get("final_norm.bias")
    added = 0.0 if beta is None else wide(beta) @ unembed[list(targets)].T * config.logit_scale
    head_bias = weights.get("head.bias")
    added = added + (0.0 if head_bias is None else wide(head_bias)[list(targets)])
    np.testing.assert_allclose(found["bias"], np.broadcast_to(added, 3), atol=1e-4)

    def behind(vector: np.ndarray, layer: int, sublayer: int) -> np.ndarray:
        """Through the norms that follow the sums from this one on, their scales taken as 1 too, and without biases."""
        if config.norm_placement != "post":
            return vector
        names = ["attn_norm", *(["cross_norm"] if config.cross_attention else []), "mlp_norm"]
        order = [f"layers.{i}.{norm}.weight" for i in range(config.num_layers) for norm in names]
        for gamma in order[layer * len(names) + sublayer :]:
            vector = (vector - vector.mean(-1, keepdims=True)) * wide(weights[gamma])
        return vector

    def through(vector: np.ndarray, layer: int) -> np.ndarray:
        if config.norm_placement not in ("sandwich", "output"):
            return vector
        vector = vector - vector.mean(-1, keepdims=True) if config.norm == "layernorm" else vector
        return vector * (wide(weights[f"layers.{layer}.attn_post_norm.weight"]) + config.norm_weight_offset)

    for i, (layer, head) in enumerate(pairs):
        moved = through(head_by_hand(name, layer, head)[3], layer)
        np.testing.assert_allclose(found["gram"][i], moved @ moved.T, rtol=1e-4, atol=1e-4)
        expected = [[logit(behind(row, layer, 0), token) for token in targets] for row in moved]
        np.testing.assert_allclose(found["readout"][i], expected, rtol=1e-3, atol=1e-3)
    for layer in range(config.num_layers):
        bias = weights.get(f"layers.{layer}.attn_out.bias")
        moved = np.zeros(config.hidden_size) if bias is None else through(wide(bias), layer)
        read = [logit(behind(moved, layer, 0), token) for token in targets]
        np.testing.assert_allclose(found["attn_bias"][layer], read, rtol=1e-3, atol=1e-3)
    assert ("cross_bias" in found) == config.cross_attention
    assert ("sum_directions" in found) == (config.norm_placement == "post")
    if "sum_directions" in found:
        last = found["sum_directions"].shape[1] - 1
        read = [logit(behind(stream, 0, last), token) for token in targets]
        np.testing.assert_allclose(stream @ found["sum_directions"][0, last], read, rtol=1e-3, atol=1e-3)


def test_one_heads_output_matrix() -> None:
    found = ask("gpt2", "head_output", part="decoder", layer=1, head=2)
    _, weights, _ = network("gpt2")
    np.testing.assert_array_equal(found["w_o"], head_by_hand("gpt2", 1, 2)[3].astype(np.float32))
    np.testing.assert_array_equal(found["b_o"], weights["layers.1.attn_out.bias"].numpy())


def test_a_question_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="accepted are geometry, circuits, head_output, head_readout"):
        ask("gpt2", "colour")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_weights_are_said_to_be_broken(bad: float) -> None:
    """The largest cosine of such a matrix was told as -1, and its spectrum as a decomposition that did not converge."""
    config, weights, _ = network("gpt2")
    broken = {key: tensor.clone() for key, tensor in weights.items()}
    broken["layers.1.qkv.weight"][3, 5] = bad
    lookup = LiveWeights(build_model(config, broken, context=config.max_model_len))
    for question, options in (
        ("geometry", {"matrix": "blocks.1.attn.W_Q", "axis": "rows", "spectrum": 0}),
        ("geometry", {"matrix": "blocks.1.attn.W_Q", "axis": "columns"}),
        ("circuits", {"part": "decoder", "pairs": ((0, 1), (1, 0))}),
    ):
        with pytest.raises(ValueError, match=r"the weights (of layer 1, head 0, )?are broken"):
            answer(config, lookup, question, options, lambda: None)
