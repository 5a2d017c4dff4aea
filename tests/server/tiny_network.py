"""A small transformer in plain numpy loops, and a fake engine that answers every inspection request from that one pass.

So the routes are tested against numbers that belong together: patterns that mix values, parts that sum to logits. It is
pre-norm (RMSNorm or LayerNorm), with grouped key heads, a soft cap and biases if asked for, and no positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from model.analysis import weights
from model.config import ModelConfig
from model.hooks.point_names import full_name
from server.engine.outputs import Array, RequestOutput
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    HeadScoresTask,
    LensTask,
    PointCapture,
    Task,
    TraceTask,
    WeightsTask,
)
from tests.server.fake_client import FakeEngine

Floats = npt.NDArray[np.float64]
LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDTH, NEURONS = 2, 4, 2, 3, 8, 10


def network_config(base: ModelConfig, **changes: Any) -> ModelConfig:
    """Return `base` (the fake network's) with this network's shape."""
    shape: dict[str, Any] = {
        "num_layers": LAYERS, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "hidden_size": WIDTH, "intermediate_size": NEURONS, "attention_scale": 0.6, "learned_positions": False,
        "norm": "rmsnorm", "head_bias": True,
    }  # fmt: skip
    return replace(base, **{**shape, **changes})


class TinyNetwork:
    """Random weights of a config, and every named point of a pass over token ids."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        rng = np.random.default_rng(seed)

        def draw(*shape: int) -> Floats:
            return rng.normal(0, 0.8, shape)

        self.embed = draw(config.vocab_size, WIDTH)
        self.layers = [
            {
                "ln1": 1 + draw(WIDTH) / 4, "ln2": 1 + draw(WIDTH) / 4,
                "q": draw(HEADS, WIDTH, HEAD_DIM), "k": draw(KV_HEADS, WIDTH, HEAD_DIM),
                "v": draw(KV_HEADS, WIDTH, HEAD_DIM), "o": draw(HEADS, HEAD_DIM, WIDTH), "b_o": draw(WIDTH),
                "up": draw(WIDTH, NEURONS), "down": draw(NEURONS, WIDTH),
            }
            for _ in range(LAYERS)
        ]  # fmt: skip
        self.gamma, self.beta = 1 + draw(WIDTH) / 4, draw(WIDTH)
        self.head, self.head_bias = draw(WIDTH, config.vocab_size), draw(config.vocab_size)

    def _norm(self, x: Floats, gamma: Floats) -> tuple[Floats, Floats]:
        """Return the normed rows, and what they were divided by."""
        if self.config.norm == "layernorm":
            x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        return x / scale * gamma, scale

    @property
    def _beta(self) -> Floats:
        return self.beta if self.config.norm == "layernorm" else np.zeros(WIDTH)

    def points(self, ids: Sequence[int]) -> dict[str, Floats]:
        """Return the points by the names of an engine's answer; patterns [head, query, key], heads [position, head,
        d_head].
        """
        config, found = self.config, {}
        x = found["hook_embed"] = self.embed[list(ids)]
        for i, w in enumerate(self.layers):
            here = {"hook_resid_pre": x}
            normed, _ = self._norm(x, w["ln1"])
            q, k, v = (np.einsum("pw,hwd->phd", normed, w[name]) for name in "qkv")
            here |= {f"attn.hook_{name}": value for name, value in zip(("q", "k", "v"), (q, k, v), strict=True)}
            here |= {"attn.hook_rot_q": q, "attn.hook_rot_k": k}
            scores = np.full((HEADS, len(ids), len(ids)), -np.inf)
            for h in range(HEADS):
                for query in range(len(ids)):
                    for key in range(query + 1):
                        score = config.attention_scale * float(q[query, h] @ k[key, h // (HEADS // KV_HEADS)])
                        cap = config.attn_logit_softcap
                        scores[h, query, key] = score if cap is None else cap * math.tanh(score / cap)
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern /= pattern.sum(-1, keepdims=True)
            z = np.einsum("hqk,khd->qhd", pattern, np.repeat(v, HEADS // KV_HEADS, axis=1))
            result = np.einsum("qhd,hdw->qhw", z, w["o"])
            here |= {"attn.hook_attn_scores": scores, "attn.hook_pattern": pattern, "attn.hook_z": z}
            here |= {"attn.hook_result": result, "hook_attn_out": result.sum(1) + w["b_o"]}
            x = x + here["hook_attn_out"]
            here["hook_resid_mid"] = x
            here["hook_mlp_out"] = np.maximum(self._norm(x, w["ln2"])[0] @ w["up"], 0) @ w["down"]
            x = here["hook_resid_post"] = x + here["hook_mlp_out"]
            found |= {full_name(config, "decoder", name, i): value for name, value in here.items()}
        normed, found["ln_final.hook_scale"] = self._norm(x, self.gamma)
        found["ln_final.hook_out"] = normed + self._beta
        found["logits"] = self.logits(x)
        return found

    def logits(self, stream: Floats) -> Floats:
        """Apply the final norm and the head."""
        logits = (self._norm(stream, self.gamma)[0] + self._beta) @ self.head + self.head_bias
        cap = self.config.final_logit_softcap
        return logits if cap is None else cap * np.tanh(logits / cap)

    def weights(self, task: WeightsTask) -> dict[str, Floats]:
        """Return the answers that `model.analysis.contributions` describes, and `model.analysis.weights`'s about
        circuits.
        """
        options: dict[str, Any] = task.options
        if task.question in ("circuits", "added_outputs"):
            found = weights.answer(self.config, self._lookup, task.question, options, lambda: None)
            return {name: tensor.numpy() for name, tensor in found.items()}
        if task.question == "head_output":
            w = self.layers[options["layer"]]
            return {"w_o": w["o"][options["head"]], "b_o": w["b_o"]}
        if task.question == "mean_embedding":
            return {"mean": self.embed.mean(0)}
        outputs = [self.layers[layer]["o"][head] for layer, head in options["pairs"]]
        told = {"gram": np.stack([o @ o.T for o in outputs])}
        targets = list(options["targets"])
        if targets:
            u = self.gamma[:, None] * self.head[:, targets]
            if self.config.norm == "layernorm":
                u = u - u.mean(0)
            told["readout"] = np.stack([o @ u for o in outputs])
            told["direction"] = u
            told["bias"] = self._beta @ self.head[:, targets] + self.head_bias[targets]
            told["attn_bias"] = np.stack([w["b_o"] @ u for w in self.layers])
        if task.question == "held_readout":  # of one target, the logit or the difference of two
            signs = np.array([[1.0], [-1.0]])[: len(targets)]
            told = {name: value @ signs for name, value in told.items() if name != "gram"}
        return told

    def _lookup(self, name: str) -> torch.Tensor | None:
        """Return the fused weight of a name of `model.analysis.live_weights`."""
        _, layer, weight, kind = name.split(".")
        w = self.layers[int(layer)]
        if kind == "bias":
            return None
        if weight == "attn_out":
            return torch.from_numpy(w["o"].reshape(-1, WIDTH).T)
        return torch.from_numpy(np.concatenate([w[part].transpose(0, 2, 1).reshape(-1, WIDTH) for part in "qkv"]))


@dataclass
class NetworkEngine(FakeEngine):
    """The fake client, answering from a `TinyNetwork`. Its tasks are those of the inspection routes."""

    network: TinyNetwork = field(kw_only=True)

    def _outputs(self, task: Task, ids: tuple[int, ...], encoder_ids: tuple[int, ...] = ()) -> list[RequestOutput]:
        found = self.answer(task, ids)
        if found is None:
            return super()._outputs(task, ids, encoder_ids)
        tensors = {name: _array(value) for name, value in found.items()}
        return [RequestOutput(uid=0, tensors=tensors, finish_reason="done")]

    def answer(self, task: Task, ids: tuple[int, ...]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the tensors of one task, or None for those that the plain fake answers."""
        if isinstance(task, WeightsTask):
            return dict(self.network.weights(task))
        if not isinstance(task, HeadScoresTask | LensTask | TraceTask | AttentionTask):
            return None
        points = self.network.points(ids)
        if isinstance(task, HeadScoresTask):
            return {"heads.scores": np.stack([_rows(points, ids, pair, task.offsets) for pair in task.pairs])}
        if isinstance(task, LensTask):
            return self._lens(points, task)
        if isinstance(task, TraceTask) and {point.name for point in task.points} <= points.keys():
            return {capture.name: _captured(points[capture.name], capture) for capture in task.points}
        if isinstance(task, AttentionTask) and _is_mean(task.capture):
            return {"attention": _mean_patterns(points, task.capture)}
        return None

    def _lens(self, points: dict[str, Floats], task: LensTask) -> dict[str, npt.NDArray[Any]]:
        states = [points["hook_embed"], *(points[f"blocks.{i}.hook_resid_post"] for i in range(LAYERS))]
        logits = np.stack([self.network.logits(states[layer][list(task.positions)]) for layer in task.layers])
        logprobs = logits - logits.max(-1, keepdims=True)
        logprobs -= np.log(np.exp(logprobs).sum(-1, keepdims=True))
        order = np.argsort(-logprobs, axis=-1, kind="stable")
        top, targets = order[..., : task.top_k], list(task.target_token_ids)
        answer: dict[str, npt.NDArray[Any]] = {
            "lens.ids": top.astype(np.int32),
            "lens.logprobs": np.take_along_axis(logprobs, top, -1),
            "lens.entropy": -(np.exp(logprobs) * logprobs).sum(-1),
        }
        if targets:
            answer["lens.target_logprobs"] = logprobs[..., targets]
            better = logprobs[..., None, :] > logprobs[..., targets][..., None]
            answer["lens.target_ranks"] = (better.sum(-1) + 1).astype(np.int32)
        return answer


def _captured(value: Floats, capture: PointCapture) -> Floats:
    def choose(x: Floats, axis: int, indices: tuple[int, ...] | None) -> Floats:
        return x if indices is None else x.take(list(indices), axis)

    if capture.point in ("attn.hook_attn_scores", "attn.hook_pattern"):
        return choose(choose(choose(value, 0, capture.heads), 1, capture.positions), 2, capture.keys)
    value = choose(value, 0, capture.positions)
    if capture.units is not None:
        return value.reshape(len(value), -1)[:, list(capture.units)]
    return value if capture.heads is None else choose(value, 1, capture.heads)


def _is_mean(capture: AttentionCapture) -> bool:
    """Return whether the capture is what a rollout asks for: nothing but the mean over the heads."""
    return capture == AttentionCapture(pairs=capture.pairs, reduce="mean")


def _mean_patterns(points: dict[str, Floats], capture: AttentionCapture) -> Floats:
    layers = dict.fromkeys(layer for layer, _ in capture.pairs)
    return np.stack(
        [
            points[f"blocks.{layer}.attn.hook_pattern"][[h for at, h in capture.pairs if at == layer]].mean(0)
            for layer in layers
        ]
    )


def _rows(
    points: dict[str, Floats], ids: tuple[int, ...], pair: tuple[int, int], offsets: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return HeadScoresTask's measures of each query."""
    rows = []
    for q, row in enumerate(points[f"blocks.{pair[0]}.attn.hook_pattern"][pair[1]]):
        seen = row[row > 0]
        after = [p + 1 for p in range(q) if ids[p] == ids[q]]
        rows.append(
            [
                row[q - 1] if q else 0.0,
                row[q],
                row[0],
                -(seen * np.log(seen)).sum(),
                sum(w * abs(q - k) for k, w in enumerate(row)),
                row[after].sum(),
                *(row[q - offset] if q >= offset else 0.0 for offset in offsets),
            ]
        )
    return np.array(rows)


def _array(value: npt.NDArray[Any]) -> Array:
    value = np.ascontiguousarray(value if value.dtype == np.int32 else value.astype(np.float32))
    return Array(value.dtype.name, value.shape, value.tobytes())
