"""Run CUDA code without a card, on tensors with shapes and devices but without data, and count its launches.

The CPU build of torch cannot index CUDA tensors, but the operators behind indexing work: `Indexing` calls these
instead.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).parents[2]
# Operators that move no number, and so launch nothing.
_VIEWS = (
    "view", "_unsafe_view", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "t", "alias",
    "detach", "unbind", "split", "split_with_sizes", "chunk", "as_strided", "reshape", "unfold", "lift_fresh", "lift",
    "_reshape_alias", "view_as", "diagonal", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
)  # fmt: skip
_SYNCS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero")


class Indexing(TorchFunctionMode):
    """Replaces operations that need a torch with CUDA: indexing by Python, addresses, some copies."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.data_ptr:
            return 0
        if function is Tensor.__getitem__:
            found, tensors = _indexed(*args)
            if tensors is None:
                return found if found is not args[0] else torch.ops.aten.alias(found)
            return torch.ops.aten.index.Tensor(found, tensors)
        if function is Tensor.__setitem__:
            found, tensors = _indexed(args[0], args[1])
            value = args[2]
            if not isinstance(value, Tensor):
                value = torch.full((), value, dtype=found.dtype, device=found.device)
            if tensors is None:
                return torch.ops.aten.copy_(found, value.expand(found.shape))
            return torch.ops.aten.index_put_(found, tensors, value.to(found.dtype))
        if function is Tensor.to and args[0].dim() == 0 and CUDA in args[1:]:
            return torch.empty((), dtype=args[-1], device=CUDA)
        if function is Tensor.copy_:
            return torch.ops.aten.copy_(*args)
        if function is Tensor.contiguous and not args[0].is_contiguous():
            return torch.ops.aten.clone(args[0], memory_format=torch.contiguous_format)
        if function == Tensor.T.__get__:
            return args[0].permute(*reversed(range(args[0].dim())))
        return function(*args, **(kwargs or {}))


def _indexed(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None] | None]:
    """Return x with the plain parts of an index applied, and the tensors of the index, or None if there are none."""
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (x.dim() - used)
    dim, tensors = 0, list[Tensor | None]()
    for part in parts:
        if part is None:
            x = x.unsqueeze(dim)
        elif isinstance(part, int):
            x = torch.ops.aten.select.int(x, dim, part)
            continue
        elif isinstance(part, slice):
            if part != slice(None):
                x = torch.ops.aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        else:
            tensors.append(part if isinstance(part, Tensor) else torch.as_tensor(part))
            dim += 1
            continue
        tensors.append(None)
        dim += 1
    return x, tensors if any(each is not None for each in tensors) else None


class Counts(TorchDispatchMode):
    """Counts the operations of a card: launches by name; uploads, readbacks and waits of the host by place."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.places: dict[str, Counter[str]] = {name: Counter() for name in ("upload", "readback", "wait")}

    def __getitem__(self, name: str) -> int:
        return self.places[name].total()

    def launch(self, name: str) -> None:
        self.launches[name] += 1

    def copy(self, name: str) -> None:
        """Count a copy, or a wait of the host, by the place in the code that causes it."""
        stack = traceback.extract_stack()
        frames = [frame for frame in stack if str(ROOT) in frame.filename and "site-packages" not in frame.filename]
        own = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
        frame = own[-1] if own else frames[-1]
        self.places[name][f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}"] += 1

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.split("::")[1]
        inputs = _devices((args, kwargs))
        if name in _SYNCS and "cuda" in inputs:
            self.copy("wait")
            if name != "nonzero":
                return args[0].dtype == torch.bool or (1.0 if args[0].dtype.is_floating_point else 1)
        if function.namespace == "aten" and name not in _WHOLE:
            with self:
                found = function.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        found = function(*args, **(kwargs or {}))
        outputs = _devices(found)
        if name in _VIEWS:
            return found
        if name in ("_to_copy", "copy_") and {"cpu", "cuda"} <= inputs | outputs:
            self.copy("upload" if "cuda" in outputs else "readback")
        elif "cuda" in outputs:
            self.launch(name)
        return found


_WHOLE = ("scaled_dot_product_attention", "rms_norm", "layer_norm", "native_layer_norm", "linear", "softmax")
"""Operators with one launch on a card, even if several operators implement them here."""


_CAPABILITY = (9, 0)
"""The compute capability of the fake card (H100)."""


def _devices(tree: object) -> set[str]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}


@contextmanager
def fake_card() -> Iterator[None]:
    """Run CUDA code on tensors without numbers. Kernels of Triton do nothing."""
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        capability = mock.patch("torch.cuda.get_device_capability", return_value=_CAPABILITY)
        with mode, torch.inference_mode(), Indexing(), mock.patch.object(JITFunction, "run"), capability:
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def counted(run: Callable[[], object]) -> Counts:
    """Return the card operations of a function that runs within `fake_card`."""
    counts = Counts()

    def launched(kernel: Any, *arguments: object, **options: object) -> None:
        counts.launch(kernel.__name__)

    def on_host(size: int, device: torch.device) -> Tensor:
        with unset_fake_temporarily():
            return torch.zeros(size, dtype=torch.int32)

    def uploaded(numbers: Tensor, device: torch.device) -> Tensor:
        counts.copy("upload")
        return torch.empty(numbers.shape, dtype=numbers.dtype, device=device)

    def downloaded(tensors: Sequence[Tensor | None]) -> tuple[list[None], None]:
        for each in tensors:
            if each is not None:
                counts.copy("readback")
        return [None] * len(tensors), None

    downloading = mock.patch("lightwell.server.engine.execution.device_runner.download", downloaded)
    launching = mock.patch.object(JITFunction, "run", launched)
    uploading = mock.patch.multiple("lightwell.model.layers.device_batch", on_host=on_host, upload=uploaded)
    with launching, uploading, downloading, counts:
        run()
    return counts
