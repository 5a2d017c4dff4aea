"""Checks of the arguments of kernels before memory is accessed. Independent of the computations."""

import ctypes
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.library import kernels

SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""The end of a kernel's name, by the dtype of its numbers."""

KernelActivation = Activation | Literal["sigmoid"]
ACTIVATIONS: dict[KernelActivation | None, int] = {
    None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "sigmoid": 5,
}  # fmt: skip
"""`Activation` of `cpu/functions.h`."""


def check_tensor(name: str, x: Tensor, dtypes: Collection[torch.dtype], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x is contiguous in the CPU's memory, with one of these dtypes and this shape."""
    if x.shape != shape or x.dtype not in dtypes or not x.is_contiguous() or not x.is_cpu:
        raise _refusal(name, x, dtypes, str(list(shape)))


def check_axes(name: str, x: Tensor, dtypes: Collection[torch.dtype], num_axes: int) -> None:
    """Raise ValueError unless x is contiguous in the CPU's memory, with one of these dtypes and `num_axes` axes."""
    if x.ndim != num_axes or x.dtype not in dtypes or not x.is_contiguous() or not x.is_cpu:
        raise _refusal(name, x, dtypes, f"of {num_axes} axes")


def address_of(name: str, x: Tensor | None, dtypes: Collection[torch.dtype], shape: tuple[int, ...]) -> int | None:
    """Return the address of x after `check_tensor`, or None for an optional tensor that is not given."""
    if x is None:
        return None
    check_tensor(name, x, dtypes, shape)
    return x.data_ptr()


def check_numbers(name: str, x: Tensor, num_axes: int) -> str:
    """Return the suffix of the kernels for the dtype of x. Raises ValueError in the same cases as `check_axes`."""
    check_axes(name, x, SUFFIXES, num_axes)
    return SUFFIXES[x.dtype]


def check_activation(activation: KernelActivation | None) -> None:
    """Raise ValueError for an unknown activation."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; {', '.join(map(repr, ACTIVATIONS))} are accepted")


def check_indices(name: str, indices: Tensor, limit: int) -> None:
    """Raise ValueError unless all indices, int64 and contiguous, are from 0 to limit - 1."""
    place = ctypes.c_long()
    kernels().call("first_outside", "pllp", indices.data_ptr(), indices.numel(), limit, ctypes.byref(place))
    if place.value >= 0:
        found = int(indices.flatten()[place.value])
        raise ValueError(f"{name} contains {found} at {place.value}; 0 to {limit - 1} is accepted")


def _refusal(name: str, x: Tensor, dtypes: Collection[torch.dtype], wanted: str) -> ValueError:
    accepted = " or ".join(dict.fromkeys(map(str, dtypes)))
    return ValueError(f"{name} is {described(x)}; {accepted} {wanted} on cpu, contiguous, is accepted")


def described(x: Tensor) -> str:
    """Return the dtype, the shape and the device of a tensor, for an error message."""
    return f"{x.dtype} {list(x.shape)} on {x.device}{'' if x.is_contiguous() else ', not contiguous'}"
