"""Which kernels are chosen here, and how bfloat16 numbers are multiplied."""

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from lightwell.model.kernels import build, cpus, library
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.cpus import DOT_LEVELS, TABLE, CpuRow, best_arithmetic, find_row
from lightwell.model.kernels.products import DOT, WIDEN
from tests.model.kernels.levels import NOT_COMPILED, at_level, each_level

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")
needs_dot = pytest.mark.skipif(not set(DOT_LEVELS) & set(library.levels()), reason="this CPU has no such products")


def pretend(monkeypatch: pytest.MonkeyPatch, vendor: str, family: int, model: int) -> None:
    """Make the table see another CPU."""
    monkeypatch.setattr(cpus, "cpu", lambda: (vendor, family, model))


@pytest.mark.parametrize(
    ("cpu", "level", "arithmetic"),
    [
        (("AuthenticAMD", 25, 17), "avx512_bf16", DOT),  # Genoa
        (("AuthenticAMD", 25, 160), "avx512_bf16", DOT),  # Bergamo
        (("AuthenticAMD", 26, 2), "avx512_bf16", DOT),  # Turin
        (("AuthenticAMD", 26, 2), "avx512", WIDEN),  # no such products
        (("GenuineIntel", 6, 207), "avx512_bf16", WIDEN),  # Emerald Rapids
        (("GenuineIntel", 6, 85), "avx512_bf16", WIDEN),  # Cooper Lake
        (("AuthenticAMD", 99, 2), "avx512_bf16", WIDEN),
        (("", 0, 0), "neon_bf16", WIDEN),
    ],
)
def test_a_cpu_multiplies_as_the_table_says_and_one_that_it_does_not_name_widens(
    cpu: tuple[str, int, int], level: str, arithmetic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, *cpu)
    assert best_arithmetic(level) == arithmetic


def test_no_cpu_has_two_rows_and_no_row_a_level_without_dot_products() -> None:
    names = [(row.vendor, row.family, model) for row in TABLE for model in row.models]
    assert len(names) == len(set(names))
    assert all(set(row.dot_levels) <= set(DOT_LEVELS) for row in TABLE)
    assert [find_row(*name) for name in names] == [row for row in TABLE for _ in row.models]


@needs_kernels
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="compares with /proc/cpuinfo")
def test_the_library_names_the_cpu_as_the_system_does() -> None:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    if "vendor_id" not in facts:
        assert library.cpu() == ("", 0, 0)
    else:
        assert library.cpu() == (facts["vendor_id"], int(facts["cpu family"]), int(facts["model"]))


@needs_dot
def test_arithmetic_follows_the_table_unless_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor, family, model = random.choice(["GenuineIntel", "NewVendor"]), random.randrange(99), random.randrange(256)
    level = next(level for level in library.levels() if level in DOT_LEVELS)
    pretend(monkeypatch, vendor, family, model)
    row = CpuRow("drawn", vendor, family, (model,), (level,))
    with at_level(level):
        for table, best in (((row,), DOT), ((), WIDEN)):
            monkeypatch.setattr(cpus, "TABLE", table)
            assert AUTO.bfloat16_arithmetic() == best
            assert KernelConfig(arithmetic="bf16-dot").bfloat16_arithmetic() == DOT
            assert KernelConfig(arithmetic="float32").bfloat16_arithmetic() == WIDEN


@pytest.mark.skipif(not {*library.levels()} - {*DOT_LEVELS}, reason=f"needs a level without: {NOT_COMPILED}")
def test_dot_products_that_the_level_lacks_are_widened_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    lowest = library.levels()[0]
    assert lowest not in DOT_LEVELS
    with at_level(lowest), caplog.at_level(logging.WARNING):
        KernelConfig(arithmetic="bf16-dot").check_machine()
        assert KernelConfig(arithmetic="bf16-dot").bfloat16_arithmetic() == WIDEN
        assert all(part in caplog.text for part in ("bf16-dot", lowest, "widened"))
        caplog.clear()
        KernelConfig(arithmetic="float32").check_machine()
        KernelConfig("torch", "bf16-dot").check_machine()
    assert caplog.text == ""


def test_why_kernels_cannot_serve_names_what_they_take() -> None:
    for dtype in (torch.float16, torch.float64):
        assert "float32 or bfloat16" in (AUTO.why_not_native(dtype, CPU) or "")
    assert "cpu" in (AUTO.why_not_native(torch.float32, torch.device("cuda")) or "")
    assert "--kernels torch" in (KernelConfig("torch").why_not_native(torch.float32, CPU) or "")
    assert (AUTO.why_not_native(torch.bfloat16, CPU) is None) == bool(library.levels())


def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="kernels is 'numba'; auto, native, triton, torch are accepted"):
        KernelConfig("numba")
    with pytest.raises(ValueError, match="kernel_arithmetic is 'bf16'; auto, float32, bf16-dot are accepted"):
        KernelConfig("auto", "bf16")


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A function that chooses kernels like a new process with these variables and, if given, another built library. It
    returns the arithmetic or the error.
    """

    def forget() -> None:
        for cached in (library._library, library.levels, library.cpu, library.kernels):
            cached.cache_clear()

    def choose(kernels: str, built: Path = library.LIBRARY, **environ: str) -> str:
        monkeypatch.setattr(library, "LIBRARY", built)
        with patch.dict(os.environ, {library.LEVEL_VARIABLE: ""} | environ):
            forget()
            try:
                config = KernelConfig(kernels)
                config.check_machine()
                return f"arithmetic {config.bfloat16_arithmetic()}"
            except (ValueError, RuntimeError) as error:
                return str(error)

    yield choose
    forget()


def test_a_level_or_a_library_that_is_not_there_is_named_with_what_is(choosing: Callable[..., str]) -> None:
    levels = library.levels()
    message = choosing("auto", LIGHTWELL_KERNEL_LEVEL="mmx")
    assert all(level in message for level in levels)
    assert "'mmx'" in message or not levels
    assert "'/nothing.so'" in choosing("auto", LIGHTWELL_KERNEL_LIBRARY="/nothing.so")
    assert "'/nothing.so'" in choosing("torch", LIGHTWELL_KERNEL_LEVEL="mmx", LIGHTWELL_KERNEL_LIBRARY="/nothing.so")
    assert "arithmetic" in choosing("auto", LIGHTWELL_KERNEL_LEVEL="", LIGHTWELL_KERNEL_LIBRARY="")


def without_kernels(folder: str, names: list[str]) -> list[str]:
    """Return the files of kernels in a folder of their own, which take minutes to compile."""
    places = {name: str(Path(folder, name).relative_to(build.SOURCES)) for name in names if name.endswith(".cpp")}
    return [name for name, place in places.items() if place not in build._ONCE]


def test_a_level_that_is_not_compiled_is_refused_with_the_command_that_compiles_it(
    tmp_path: Path, choosing: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lower, *higher = build.LEVELS[build.architecture()]
    own, kernels = build.own_levels(), tmp_path / "kernels.so"
    if not {*own} & {*higher}:
        pytest.skip("this CPU has one level only")
    no_kernels = shutil.copytree(build.SOURCES, tmp_path / "cpu", ignore=without_kernels)
    monkeypatch.setattr(build, "SOURCES", no_kernels)
    build.build(kernels, levels=own)
    message = choosing("auto", LIGHTWELL_KERNEL_LEVEL=lower, LIGHTWELL_KERNEL_LIBRARY=str(kernels))
    assert f"{lower!r}, which is not compiled ({own[0]} is)" in message
    assert "`python model/kernels/build.py --all-levels`" in message
    assert "arithmetic" in choosing("auto", LIGHTWELL_KERNEL_LEVEL=own[0], LIGHTWELL_KERNEL_LIBRARY=str(kernels))
    build.build(kernels, levels=[lower])
    assert "arithmetic" in choosing("auto", LIGHTWELL_KERNEL_LIBRARY=str(kernels))
    build.build(kernels, levels=())
    assert "no compiled kernels" in choosing(
        "auto", LIGHTWELL_KERNEL_LEVEL=lower, LIGHTWELL_KERNEL_LIBRARY=str(kernels)
    )


def test_without_a_library_torch_serves_unless_native_kernels_are_asked_for_and_one_of_another_source_is_refused(
    tmp_path: Path, choosing: Callable[..., str]
) -> None:
    garbage, other = tmp_path / "garbage.so", tmp_path / "other.so"
    garbage.write_bytes(b"no library")
    for built in (garbage, Path("/nothing.so")):
        assert choosing("auto", built=built, LIGHTWELL_KERNEL_LIBRARY="") == "arithmetic 0"
        message = choosing("native", built=built, LIGHTWELL_KERNEL_LIBRARY="")
        assert "'native'" in message
        assert "'auto' and 'torch' are accepted" in message
    compiled = build.LIBRARY.read_bytes()
    number = build.sources_hash().to_bytes(8, "little")
    assert compiled.count(number) == 1
    other.write_bytes(compiled.replace(number, bytes(8)))
    assert "not built from the source code" in choosing("auto", built=other, LIGHTWELL_KERNEL_LIBRARY="")


@needs_kernels
@each_level
def test_auto_activations_have_8_bits_where_that_is_faster(level: str) -> None:
    auto = KernelConfig(activations="auto")
    with at_level(level):
        for dtype in (torch.float32, torch.bfloat16):
            assert auto.with_activations(dtype, CPU, "int8", is_quantized=True).activations == "int8"
            stored = auto.with_activations(dtype, CPU, "none", is_quantized=True).activations
            assert stored == ("int8" if level == "avx512_bf16" else "dtype")
            assert auto.with_activations(dtype, CPU, "none", is_quantized=False).activations == "dtype"
        assert auto.with_activations(torch.float16, CPU, "int8", is_quantized=True).activations == "dtype"
    for given in (AUTO, KernelConfig(activations="int8")):
        assert given.with_activations(torch.float32, CPU, "int8", is_quantized=True) == given
