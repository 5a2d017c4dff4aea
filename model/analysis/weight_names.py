"""All weights of a network by TransformerLens's names and axes, and their rows in our weights.

They are the matrices of `model.analysis.matrices`, biases (b_Q [head, d_head], b_in [d_mlp]), gains and
biases of norms, by the norms' points (ln1.w, ln_final.b, attn.q_norm.w), and W_router and each expert's matrices in a
mixture of experts. This module needs names and shapes only.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from lightwell.model.analysis.matrices import NamedWeight, UnknownMatrix, find_matrix, names_of, split_name
from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config, stacks
from lightwell.model.hooks.points import Stack

_BIASES = {"W_Q": "b_Q", "W_K": "b_K", "W_V": "b_V", "W_O": "b_O", "W_in": "b_in", "W_gate": "b_gate", "W_out": "b_out"}
_NORMS = {
    "ln1": ("attn_norm", "attn_post_norm"),
    "ln1_post": ("attn_norm", "attn_post_norm"),
    "ln_cross": ("cross_norm",),
    "ln2": ("mlp_norm", "mlp_post_norm"),
    "ln2_post": ("mlp_norm", "mlp_post_norm"),
    "attn.q_norm": ("q_norm",),
    "attn.k_norm": ("k_norm",),
}
"""The norms of a block, and our weights that may hold each: the first existing one does."""


@dataclass(frozen=True, slots=True)
class WeightList:
    weights: tuple[NamedWeight, ...]
    not_listed: tuple[str, ...]
    """Our names, without layer and expert, of weights that TransformerLens does not name."""


@lru_cache(maxsize=4)
def list_weights(config: ModelConfig) -> WeightList:
    """Return every weight of the model, and our names of weights that have no name here."""
    found: list[NamedWeight] = []
    used: set[str] = set()
    for stack in stacks(config):
        maker = _Stack(config, stack)
        found += maker.outside()
        for layer in range(stack_config(config, stack).num_layers):
            found += maker.in_block(layer)
        used |= maker.used
    rest = (re.sub(r"(layers|experts)\.\d+\.", "", name) for name in _our_names(config) if name not in used)
    ends = {"ln_final": 1, "unembed": 2}  # in the order of a forward pass: after the blocks
    found.sort(key=lambda each: ends.get(_short(each.name).partition(".")[0], 0))
    return WeightList(tuple(found), tuple(dict.fromkeys(rest)))


def find_weight(config: ModelConfig, name: str, layer: int | None = None) -> NamedWeight:
    """Return the weight of a full name ("blocks.0.ln1.w"), or of a short one ("W_Q", "mlp.b_in") and `layer`. Raises
    UnknownMatrix.
    """
    stack, at, short = split_name(config, name, layer)
    num_layers = stack_config(config, stack).num_layers
    if at is not None and not 0 <= at < num_layers:
        raise UnknownMatrix(f"there is no layer {at}; accepted are 0 to {num_layers - 1}")
    outside = [each for of in dict.fromkeys((stack, stacks(config)[0])) for each in _Stack(config, of).outside()]
    maker = _Stack(config, stack)
    inside = [*maker.in_block(at or 0), *maker.rotary(at or 0)]
    found = _meant(short, outside if at is None else inside)
    if found is not None:
        return found
    if at is None and (found := _meant(short, inside)):
        raise UnknownMatrix(
            f"{_short(found.name)!r} exists in every block; set layer to a number from 0 to {num_layers - 1}"
        )
    if at is not None and (found := _meant(short, outside)):
        raise UnknownMatrix(f"{_short(found.name)!r} is outside the blocks; leave out layer")
    near = difflib.get_close_matches(short, [_short(each.name) for each in (*inside, *outside)], 4, cutoff=0.0)
    where = "this model" if at is None else f"layer {at}"
    raise UnknownMatrix(f"{where} has no weight {name[:80]!r}; similar names are {', '.join(near)}")


def _meant(short: str, there: list[NamedWeight]) -> NamedWeight | None:
    """Return the weight of a name without stack and layer, or of only its last part, if that is unambiguous."""
    whole = next((each for each in there if _short(each.name) == short), None)
    if whole is not None or short in ("w", "b"):
        return whole
    return next((each for each in there if _short(each.name).rpartition(".")[2] == short), None)


def _short(name: str) -> str:
    return re.sub(r"^((encoder|decoder)\.)?(blocks\.[^.]+\.)?", "", name)


@lru_cache(maxsize=4)
def _our_names(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights_of(config)}


class _Stack:
    """Lists the weights of one stack."""

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        self._config, self._stack = config, stack
        self.ours = _our_names(config)
        self.used: set[str] = set()
        """Our weights that have a name here."""
        self._own = stack_config(config, stack)
        self._ours_before = "encoder." if stack == "encoder" and config.encoder is not None else ""
        self._before = f"{stack}." if config.kind == "encoder-decoder" else ""

    def outside(self) -> Iterator[NamedWeight]:
        for pattern in names_of(self._config):
            if "{layer}" in pattern or not self._is_mine(pattern):
                continue
            named = self._of_matrix(find_matrix(self._config, pattern))
            if pattern == "unembed.W_U" and self._config.tie_word_embeddings:
                named = replace(named, tied_to="embed.W_E")
            yield named
        for name, ours in (("embed_norm", "embed_norm"), ("ln_final", "final_norm")):
            yield from self._norm(self._before + name, self._ours_before + ours, self._ours_before + ours)
        is_last = self._stack == stacks(self._config)[-1]
        if is_last and self._has("head.bias"):
            yield NamedWeight("unembed.b_U", "head.bias", ("d_vocab",), self.ours["head.bias"])

    def _is_mine(self, pattern: str) -> bool:
        """Return whether a matrix outside the blocks belongs to this stack; the token table to the first."""
        if pattern in ("embed.W_E", "unembed.W_U"):
            return self._stack == stacks(self._config)[0 if pattern == "embed.W_E" else -1]
        return pattern.startswith(self._before)

    def in_block(self, layer: int) -> Iterator[NamedWeight]:
        before, ours = f"{self._before}blocks.{layer}.", f"{self._ours_before}layers.{layer}."
        for point, candidates in _NORMS.items():
            held = [each for each in candidates if f"{ours}{each}.weight" in self.ours]
            if held and (len(held) == 2 or not point.endswith("_post")):  # the only norm of a sublayer is no second one
                own = held[-1] if point.endswith("_post") else held[0]
                yield from self._norm(before + point, ours + own, ours + point.removeprefix("attn."))
        for pattern in names_of(self._config):
            if "{layer}" in pattern and pattern.startswith(f"{self._before}blocks."):
                yield from self._matrix_and_bias(pattern, layer)
        yield from self._experts(before, ours)

    def rotary(self, layer: int) -> Iterator[NamedWeight]:
        """Yield the rotary frequencies of a block, in radians per position for each pair of numbers, i and i + pair.
        They are no parameters, so no list has them.
        """
        rope, head_dim = self._own.rope_of(layer), self._own.at(layer).head_dim
        if rope is not None:
            dims = head_dim if rope.rope_type == "proportional" else rope.dims or head_dim
            name, ours = "attn.rotary_frequencies", "rotary.frequencies"
            before, live = f"{self._before}blocks.{layer}.", f"{self._ours_before}layers.{layer}."
            yield NamedWeight(before + name, live + ours, ("pair",), (dims // 2,))

    def _matrix_and_bias(self, pattern: str, layer: int) -> Iterator[NamedWeight]:
        try:
            matrix = self._of_matrix(find_matrix(self._config, pattern.format(layer=layer)))
        except UnknownMatrix:  # this layer has none
            return
        is_value_key = (
            pattern.endswith(".attn.W_V") and self._own.keys_are_values and self._own.window_of(layer) is None
        )
        yield replace(matrix, tied_to=matrix.name.replace("W_V", "W_K")) if is_value_key else matrix
        letter = pattern.rpartition(".")[2]
        if self._has(f"{self._held(matrix.weight.removesuffix('.weight'))}.bias"):
            axes, shape = matrix.axes[-1:], matrix.shape[-1:]
            if letter in ("W_Q", "W_K", "W_V"):
                axes, shape = (matrix.axes[0], "d_head"), (matrix.shape[0], matrix.shape[-1])
            bias = matrix.weight.replace(".weight", ".bias")
            yield NamedWeight(
                matrix.name.replace(letter, _BIASES[letter]), bias, axes, shape, matrix.first, matrix.last
            )

    def _held(self, owner: str) -> str:
        """Return our weight that holds another: gate and up are rows of gate_up if there is a gate."""
        path, _, last = owner.rpartition(".")
        both = f"{path}.gate_up"
        return both if last in ("gate", "up") and f"{both}.weight" in self.ours else owner

    def _has(self, name: str) -> bool:
        if name in self.ours:
            self.used.add(name)
        return name in self.ours

    def _norm(self, name: str, ours: str, live: str) -> Iterator[NamedWeight]:
        for kind, letter, attribute in (("weight", "w", "gain"), ("bias", "b", "bias")):
            if self._has(f"{ours}.{kind}"):
                shape = self.ours[f"{ours}.{kind}"]
                axis = "d_model" if shape[-1] == self._own.hidden_size else "d_head"
                yield NamedWeight(f"{name}.{letter}", f"{live}.{attribute}", (axis,), shape)

    def _of_matrix(self, matrix: NamedWeight) -> NamedWeight:
        self._has(f"{self._held(matrix.weight.removesuffix('.weight'))}.weight")
        return matrix

    def _experts(self, before: str, ours: str) -> Iterator[NamedWeight]:
        """Yield the router and the experts of a block, if it has them; d_expert is the width of one."""
        d = self._own.hidden_size
        router = f"{ours}router"
        if not self._has(f"{router}.weight") or self._own.experts is None:
            return
        num, width = self._own.experts.num_experts, self._own.experts.intermediate_size
        yield NamedWeight(f"{before}mlp.W_router", f"{router}.weight", ("d_model", "expert"), (d, num), is_turned=True)
        if self._has(f"{router}.bias"):
            yield NamedWeight(f"{before}mlp.b_router", f"{router}.bias", ("expert",), (num,))
        for e in range(num):
            yield from self._expert(f"{before}mlp.experts.{e}.", f"{ours}experts.{e}.", width)
        shared = self._own.experts.shared_intermediate_size
        if shared and self._has(f"{ours}shared.gate_up.weight"):
            yield from self._expert(f"{before}mlp.shared_expert.", f"{ours}shared.", shared)

    def _expert(self, before: str, ours: str, width: int) -> Iterator[NamedWeight]:
        into, out = (self._own.hidden_size, width), (width, self._own.hidden_size)
        for name, part, held in (("gate", "gate", "gate_up"), ("in", "up", "gate_up"), ("out", "down", "down")):
            axes = ("d_expert", "d_model") if name == "out" else ("d_model", "d_expert")
            shape = out if name == "out" else into
            if self._has(f"{ours}{held}.weight"):
                yield NamedWeight(f"{before}W_{name}", f"{ours}{part}.weight", axes, shape, is_turned=True)
            if self._has(f"{ours}{held}.bias"):
                yield NamedWeight(f"{before}b_{name}", f"{ours}{part}.bias", axes[1:], shape[1:])
