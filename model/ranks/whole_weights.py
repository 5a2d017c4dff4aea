"""The whole weights of a network in several ranks, by the names of `model.analysis.live_weights`.

Weights that every rank has come from the network. Split weights are read from the model's files, one at a time, so that
no other rank is needed and no step is delayed. Files that have changed since loading raise an error.
"""

from pathlib import Path

import torch

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.checkpoint.weight_files import WeightFiles
from lightwell.model.config import ModelConfig
from lightwell.model.layers.position_bias import alibi, bias_by_distance
from lightwell.model.network.transformer import Transformer

_SHARED_OUT = ("embed", "head", "qkv", "attn_out", "cross_q", "cross_kv", "cross_out", "down")


class WholeWeights:
    """The weights of a network, by name: a call returns a tensor, or None if the network has no such weight."""

    def __init__(self, model: Transformer, folder: Path) -> None:
        """Keep one rank's part of the model. Raises ModelLoadError for files of another model."""
        self._config = model.config
        self._dtype = model.dtype
        self._own = LiveWeights(model)
        self._files = WeightFiles(folder, model.config)
        self._folder = folder
        self._as_loaded = _states(folder)

    def __call__(self, name: str) -> torch.Tensor | None:
        """Return a weight, or None. Raises RuntimeError if its file has changed since loading."""
        owner, _, kind = name.rpartition(".")
        path, _, last = owner.rpartition(".")
        config = self._config.encoder if name.startswith("encoder.") and self._config.encoder else self._config
        if last in _SHARED_OUT:
            is_tied = name == "head.weight" and self._config.has_head and self._config.tie_word_embeddings
            return self._read("embed.weight" if is_tied else name)
        if last in ("gate", "up"):
            return self._of_up(path, last, kind, config)
        if last in ("q_norm", "k_norm") and kind == "gain":  # a norm over all heads is split like the heads
            gain = self._read(f"{owner}.weight")
            return None if gain is None else gain + config.norm_weight_offset
        if last == "position_bias":
            return self._bias_by_distance(name, config)
        return self._own(name)

    def stored_as(self, name: str) -> str | None:
        """Return the format of a stored weight, as text. All ranks use the same format."""
        return self._own.stored_as(name)

    def _of_up(self, path: str, last: str, kind: str, config: ModelConfig) -> torch.Tensor | None:
        """Return the weight or bias of gate or up, which a gated mlp stores as one matrix, gate first."""
        if not config.gated_mlp:
            return self._read(f"{path}.up.{kind}") if last == "up" else None
        both = self._read(f"{path}.gate_up.{kind}")
        return None if both is None else both.chunk(2)[("gate", "up").index(last)]

    def _bias_by_distance(self, name: str, config: ModelConfig) -> torch.Tensor | None:
        own, table = self._own(name), self._read(name.replace("by_distance", "weight"))
        if own is None:
            return None
        reach = (own.shape[1] + 1) // 2
        if table is None or config.position_bias is None:
            return alibi(config.num_heads, reach, own.dtype, own.device)
        return bias_by_distance(table, config.position_bias, reach)

    def _read(self, name: str) -> torch.Tensor | None:
        if name not in self._files.weights:
            return None
        self._check_unchanged()  # before: reading a mapped file that was truncated would kill the process
        weight = self._files.read(name, self._dtype)
        self._check_unchanged()  # after: it may have changed during the read
        return weight

    def _check_unchanged(self) -> None:
        if _states(self._folder) != self._as_loaded:
            raise RuntimeError(
                f"model_changed: the weight files in {self._folder} are not the files that this server loaded, and "
                "complete weights are read from these files; restart the server to serve the changed files"
            )


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the size in bytes and the time of change of each weight file."""
    files = (path for path in folder.glob("*") if path.suffix in (".safetensors", ".bin"))
    return {path: ((stat := path.stat()).st_size, stat.st_mtime_ns) for path in files}
