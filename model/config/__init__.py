"""Configuration of a network, as plain data. Independent of files, tensors and servers.

Families differ in data only. model/checkpoint/registry.py reads a folder's files into this.
"""

from lightwell.model.config.classifier import ClassifierConfig, DenseActivation, State
from lightwell.model.config.feedforward import AltUpConfig, ClampedGate, ExpertsConfig
from lightwell.model.config.model_config import Activation, Kind, ModelConfig, NormKind, NormPlacement, QkNorm
from lightwell.model.config.positions import PositionBiasConfig, RopeConfig, RopeType
from lightwell.model.config.recurrence import DeltaNetConfig, Recurrence, ShortConvConfig, StateSizes

__all__ = [
    "Activation", "AltUpConfig", "ClampedGate", "ClassifierConfig", "DeltaNetConfig", "DenseActivation",
    "ExpertsConfig", "Kind", "ModelConfig", "NormKind", "NormPlacement", "PositionBiasConfig", "QkNorm", "Recurrence",
    "RopeConfig", "RopeType", "ShortConvConfig", "State", "StateSizes",
]  # fmt: skip
