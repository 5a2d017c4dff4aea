"""The spectra and compositions of heads against the whole products of the checkpoint's own tensors."""

import gc

import numpy as np
import pytest

from lightwell.model.analysis.circuits import Head
from lightwell.model.analysis.weights import answer
from tests.model.analysis.weights_by_hand import ask, matrix_by_hand, network, wide


def head_by_hand(name: str, layer: int, head: int, module: str = "attn") -> tuple[np.ndarray, ...]:
    """Return W_Q, W_K, W_V [d_model, D] and W_O [D, d_model] of one query head."""
    config, _, _ = network(name)
    size, group = config.head_dim, head // (config.num_heads // config.num_kv_heads)
    prefix = "decoder." if config.kind == "encoder-decoder" else ""

    def columns(matrix: str, index: int) -> np.ndarray:
        whole = matrix_by_hand(name, f"{prefix}blocks.{layer}.{module}.{matrix}")
        return whole[:, index * size : (index + 1) * size]

    w_o = matrix_by_hand(name, f"{prefix}blocks.{layer}.{module}.W_O")[head * size : (head + 1) * size]
    return columns("W_Q", head), columns("W_K", group), columns("W_V", group), w_o


def test_circuits_hold_one_head_at_a_time() -> None:
    """Check that the float64 factors of all heads are never in memory together: they are two or four times as large as
    the attention's weights.
    """
    config, _, lookup = network("llama-gqa")
    alive: list[int] = []

    def check() -> None:
        alive.append(sum(type(each) is Head for each in gc.get_objects()))

    check()
    answer(config, lookup, "circuits", {"part": "decoder", "pairs": ((0, 0), (0, 1), (0, 2))}, check)
    assert max(alive) - alive[0] <= 1


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
    assert not found[0, 1].any()  # heads of the same layer do not read each other
    assert not found[2].any()


@pytest.mark.every_family
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
        """Apply the norms that follow the sums from this one on, with scales of 1 and without biases."""
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
