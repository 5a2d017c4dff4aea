"""Compile every variant of the card's kernels without a card, and print its registers and shared memory:
`python -m benchmarks.gpu.compile_ahead [--capability 80 90] [--only WORDS ...]`.

Exit status 1 if a variant spills registers, uses too many of them, multiplies 16-bit matrices without tensor cores, or
sums in another order than a variant that must give the same bits; 2 if no variant can be compiled. Each variant and
capability that is not in Triton's cache takes about a second.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu.kernel_variants import Variant

CAPABILITIES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities, times 10, of A100, A10, L4, H100, B200 and RTX 5090."""
MAX_REGISTERS = 128
"""Most registers of a thread: with more, fewer than 16 warps fit a multiprocessor."""
MAX_SHARED = 99 << 10
"""Most bytes of a program's shared memory, on cards of compute capability 8.6, 8.9 and 12.0."""
_PRODUCTS = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)[\w.:]*")
_TENSOR_CORES = ("mma.sync", "wgmma.mma_async", "tcgen05.mma")


@dataclass(frozen=True)
class Usage:
    """The registers and memory that a compiled variant takes."""

    kernel: str
    variant: str
    capability: int
    registers: int
    """Registers of a thread."""
    stack: int
    """Bytes of a thread's stack."""
    local: int
    """Bytes of a thread's local memory."""
    shared: int
    """Bytes of a program's shared memory."""
    tensor_cores: str
    """The instructions that multiply matrices, or nothing."""
    needs_tensor_cores: bool
    most_registers: int = MAX_REGISTERS
    """Most registers that are accepted."""
    sums_like: str = ""
    """The parts of the variant that decide the order of its sums."""
    sums: frozenset[str] = frozenset()
    """The signature of the order of sums: the shape and the layout over threads of each tensor that is summed, the
    instructions that multiply matrices, and how many multiply-adds in float32 are fused.
    """

    def faults(self) -> Iterator[str]:
        """Yield each way in which the variant misses the bars."""
        if self.stack or self.local:
            yield f"{self.stack} bytes of stack and {self.local} of local memory; 0 are accepted"
        if self.registers > self.most_registers:
            yield f"{self.registers} registers; at most {self.most_registers} are accepted"
        if self.shared > MAX_SHARED:
            yield f"{self.shared} bytes of shared memory; at most {MAX_SHARED} are accepted"
        if self.needs_tensor_cores and not self.tensor_cores:
            yield "products of 16-bit numbers without tensor cores"

    def other_sums(self, before: Sequence["Usage"]) -> Iterator[str]:
        """Yield each earlier variant that should sum in the same order, and does not."""
        for other in before:
            is_like = (other.capability, other.sums_like) == (self.capability, self.sums_like)
            if self.sums_like and is_like and self.sums != other.sums:
                yield f"sums in another order than {other.kernel} {other.variant}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.compile_ahead", description=__doc__)
    parser.add_argument("--capability", type=int, nargs="+", default=list(CAPABILITIES), help="e.g. 90 for sm_90")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="compile the variants whose kernel and name contain any"
    )
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        print("Triton interprets kernels in this process: unset TRITON_INTERPRET", file=sys.stderr)
        return 2
    os.environ.pop("TRITON_INTERPRET", None)
    from benchmarks.gpu.kernel_variants import variants

    named = [(variant, f"{variant.kernel.__name__} {variant.name}") for variant in variants()]
    chosen = [variant for variant, name in named if any(words in name for words in options.only)]
    if not chosen:
        print(f"no variant contains {' or '.join(options.only)}", file=sys.stderr)
        return 2
    print(_line("kernel", "variant", "sm", "registers", "stack", "local", "shared", "tensor cores"))
    num_faults, before = 0, list[Usage]()
    for variant in chosen:
        for capability in options.capability:
            usage = compile_variant(variant, capability)
            print(
                _line(
                    usage.kernel, usage.variant, usage.capability, usage.registers, usage.stack, usage.local,
                    usage.shared, usage.tensor_cores or "-",
                ),
                flush=True,
            )  # fmt: skip
            for fault in [*usage.faults(), *usage.other_sums(before)]:
                num_faults += 1
                print(f"    {fault}", flush=True)
            before.append(usage)
    print(f"{len(chosen)} variants, {num_faults} faults")
    return 1 if num_faults else 0


def compile_variant(variant: "Variant", capability: int) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lightwell.model.kernels.cuda.dependent_launch import CAPABILITY

    names = variant.kernel.arg_names
    constants = dict.fromkeys(names) | dict(variant.constants)
    is_dependent = "DEPENDENT" in names and capability >= 10 * CAPABILITY
    if is_dependent:
        constants["DEPENDENT"] = True
    multiples = {name for name in names if variant.types.get(name, "").startswith("*")} | variant.multiples_of_16
    compiled = triton.compile(
        ASTSource(
            fn=variant.kernel,
            signature={name: variant.types.get(name, "constexpr") for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items() if name not in variant.types},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in multiples},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": variant.num_warps,
            "num_stages": variant.num_stages,
            "enable_fp_fusion": variant.fuses_multiply_add,
            "maxnreg": variant.max_registers,
            "launch_pdl": is_dependent,
        },
    )
    taken = _resources(compiled.asm["cubin"])
    is_16_bit = any(kind in ("*bf16", "*fp16") for kind in variant.types.values())
    return Usage(
        kernel=variant.kernel.__name__,
        variant=variant.name,
        capability=capability,
        registers=taken["REG"],
        stack=taken["STACK"],
        local=taken["LOCAL"],
        shared=compiled.metadata.shared,
        tensor_cores=" ".join(name for name in _TENSOR_CORES if name in compiled.asm["ptx"]),
        needs_tensor_cores=is_16_bit and "tt.dot" in compiled.asm["ttir"],
        most_registers=variant.max_registers or MAX_REGISTERS,
        sums_like=variant.sums_like,
        sums=frozenset(
            [*_sums(compiled.asm["ttgir"]), *_instructions(compiled.asm["ptx"], counts_fused=variant.fuses_in_sums)]
        ),
    )


def _resources(cubin: bytes) -> dict[str, int]:
    """Return cuobjdump's values for a kernel's machine code: REG, STACK and LOCAL."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout)}


def _sums(code: str) -> Iterator[str]:
    """Yield the shape and the layout of each tensor of floats that code of Triton's GPU dialect reduces."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    for summed in re.findall(r'"tt\.reduce"\(.*?\}\) : \(tensor<([^>]*)>', code, re.DOTALL):
        shape, _, layout = summed.rpartition(", ")
        if not re.search(r"xi\d+$", shape):  # of integers any order gives the same
            yield f"{shape} {layouts.get(layout, layout)}"


def _instructions(code: str, *, counts_fused: bool) -> Iterator[str]:
    """Yield the instructions of PTX that multiply matrices, and how many multiply-adds in float32 are fused."""
    yield from _PRODUCTS.findall(code)
    if counts_fused:
        yield f"{len(re.findall(r'fma[.]rn[.](?:ftz[.])?f32', code))} fused"


def _line(*cells: object) -> str:
    widths = (24, 92, 4, 9, 5, 5, 6, 12)
    return "  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
