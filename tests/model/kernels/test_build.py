"""How kernels are compiled: by which compiler, for which machines, and with which errors. The tests build a small
kernel: the real ones are compiled before any test runs.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from lightwell.model.kernels import build, library
from tests.model.kernels.sanitizers import sanitizer_variables

REAL = build.SOURCES
FAULTY = """
#include "threads/scratch.h"
namespace LEVEL { struct Own; }
using namespace LEVEL;
EXPORT(void, inside)(int* x, int count) { x[count - 1] = scratch<Own, int>(count)[count - 1]; }
EXPORT(void, after_memory)(int* x, int count) { x[0] = x[count]; }
EXPORT(void, after_scratch)(int* x, int count) { x[0] = scratch<Own, int>(count)[count]; }
EXPORT(void, after_an_array)(int* x, int count) { int own[] = {1, 2, 3}; own[count - x[0]] = 0, x[0] = own[count]; }
EXPORT(void, at_no_multiple)(char* x, int count) { *(int*)(x + count) = 1; }
EXPORT(void, too_large)(int* x, int count) { x[0] = 2147483647, x[0] += count; }
"""
"""Kernels that read after the end of their memory, or have undefined behaviour."""
KERNEL = '#include "level.h"\nEXPORT(void, double_f32)(float* x) { *x *= 2; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sources to build, with one small kernel."""
    library.levels()  # loads the library, which checks that it was built from the real sources
    folder = tmp_path / "cpu"
    shutil.copytree(REAL / "threads", folder / "threads")
    for name in ("level.h", "levels.cpp"):
        shutil.copy(REAL / name, folder)
    (folder / "double.cpp").write_text(KERNEL)
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


@pytest.fixture(autouse=True)
def _look_again() -> None:
    build.find_compiler.cache_clear()


def test_a_library_has_every_level_and_is_current_until_its_sources_are_newer(sources: Path, tmp_path: Path) -> None:
    levels, output = [*build.LEVELS[build.architecture()]], tmp_path / "made" / "kernels.so"
    assert not build.is_current(output, levels=())
    build.build(output)
    assert list(output.parent.iterdir()) == [output]
    made, x = ctypes.CDLL(str(output)), ctypes.c_float(3)
    for level in library.levels():
        getattr(made, f"double_f32_{level}")(ctypes.byref(x))
    assert x.value == 3 * 2 ** len(library.levels())
    assert b"libstdc++" not in output.read_bytes()
    assert build.compiled_levels(output) == (*levels,)
    assert build.is_current(output)
    assert build.is_current(output, levels=levels[1:])
    os.utime(output, (0, 0))
    assert not build.is_current(output)


def test_the_named_levels_are_compiled_and_no_other(sources: Path, tmp_path: Path) -> None:
    levels, kernels = [*build.LEVELS[build.architecture()]], tmp_path / "kernels.so"
    build.build(kernels, levels=levels[:1])
    made = ctypes.CDLL(str(kernels))
    assert [level for level in levels if hasattr(made, f"double_f32_{level}")] == levels[:1]
    assert build.compiled_levels(kernels) == (levels[0],)
    assert build.is_current(kernels, levels=levels[:1])
    assert not build.is_current(kernels, levels=levels[1:])
    assert not build.is_current(kernels)


@pytest.mark.nightly  # only `make test-nightly` uses the sanitizers
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers are those of g++")
def test_the_sanitizers_find_addresses_outside_and_undefined_behaviour(sources: Path, tmp_path: Path) -> None:
    level, kernels = library.levels()[0], tmp_path / "kernels.so"
    (sources / "faults.cpp").write_text(FAULTY)
    build.build(kernels, compiler=["g++"], levels=[level], sanitize=True)
    environment = os.environ | sanitizer_variables()

    def call(name: str) -> str:
        given = "import ctypes, sys; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; m = c.malloc(12)"
        run = f"{given}; getattr(ctypes.CDLL(sys.argv[1]), '{name}_{level}')(ctypes.c_void_p(m), 3)"
        command = [sys.executable, "-c", run, str(kernels)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr

    assert call("inside") == ""
    assert "heap-buffer-overflow" in call("after_memory")
    assert "use-after-poison" in call("after_scratch")
    assert "ILL" in call("after_an_array")
    assert "ILL" in call("at_no_multiple")
    assert "ILL" in call("too_large")


def test_a_failure_says_what_the_compiler_said_and_leaves_the_library_as_it_was(sources: Path, tmp_path: Path) -> None:
    output = tmp_path / "made" / "kernels.so"
    output.parent.mkdir()
    output.write_text("the old one")
    (sources / "double.cpp").write_text("#error no such thing\n")
    with pytest.raises(RuntimeError, match="no such thing"):
        build.build(output, levels=build.own_levels())
    assert output.read_text() == "the old one"
    assert list(output.parent.iterdir()) == [output]


def test_a_warning_is_an_error_only_where_that_is_asked_for(sources: Path, tmp_path: Path) -> None:
    (sources / "double.cpp").write_text(KERNEL + "static void unused() {}\n")
    build.build(tmp_path / "kernels.so", levels=build.own_levels())
    with pytest.raises(RuntimeError, match="unused"):
        build.build(tmp_path / "kernels.so", levels=build.own_levels(), strict=True)


def test_no_compiler_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "_compiles", lambda command: False)
    with pytest.raises(RuntimeError, match=r"no C\+\+20 compiler was found: install g\+\+"):
        build.build(tmp_path / "kernels.so")
    with pytest.raises(RuntimeError, match=r"install PyPI's ziglang$"):
        build.build(tmp_path / "kernels.so", target="manylinux_2_17_aarch64")


def test_an_architecture_has_one_name_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for machine, arch in (("AMD64", "x86_64"), ("arm64", "aarch64"), ("x86_64", "x86_64")):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert build.architecture() == arch
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(RuntimeError, match="no kernels are known for riscv64; there are some for x86_64, aarch64"):
        build.build(tmp_path / "kernels.so", compiler=["c++"])


def test_the_compiler_told_comes_first_and_one_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    there = build.find_compiler()
    assert there is not None
    build.find_compiler.cache_clear()
    monkeypatch.setenv("CXX", f"{' '.join(there)} -DTOLD")
    assert build.find_compiler() == (*there, "-DTOLD")
    build.find_compiler.cache_clear()
    monkeypatch.setenv("CXX", "/nonexistent")
    tried = build.find_compiler()
    assert tried is None or tried[1:4] == ("-m", "ziglang", "c++")


def test_zig_is_told_its_target_for_this_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that zig gets a target: otherwise it would compile every level for the CPU that it runs on."""
    monkeypatch.setattr(build, "_compiles", lambda command: "ziglang" in command)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    zig = (sys.executable, "-m", "ziglang", "c++", "-target")
    assert build.find_compiler() == (*zig, "x86_64-linux-gnu.2.17")
    assert build.find_compiler("macosx_11_0_arm64") == (*zig, "aarch64-macos.11.0")


@pytest.mark.skipif(
    not os.path.exists("/proc/cpuinfo") or build.architecture() != "x86_64", reason="needs x86 on Linux"
)
def test_the_levels_are_those_that_the_system_sees() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    needed = {
        "avx2": {"avx2", "fma", "bmi2", "f16c"},
        "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        "avx512_bf16": {"avx512_bf16", "avx512_vnni"},
        "amx": {"amx_tile", "amx_bf16", "amx_int8"},
    }
    expected = []
    for level, names in needed.items():
        if not names <= flags:
            break
        expected.append(level)
    assert [*build.own_levels()] == expected[-1:]
    assert [*library.levels()] == [level for level in expected if level in build.compiled_levels(build.LIBRARY)]


class TestWheel:
    @pytest.fixture
    def built(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The files, targets and levels that the hook built."""
        calls: list[Any] = []
        found = hatch_build._build()
        record = lambda output, target=None, levels=None: calls.append((output, target, levels))  # noqa: E731
        monkeypatch.setitem(found, "build", record)
        return calls

    def hook(self, root: Path) -> hatch_build.KernelBuildHook:
        return hatch_build.KernelBuildHook(str(root), {}, None, None, str(root / "dist"), "wheel")

    def test_of_this_machine_is_named_after_it(self, built: list[Any], tmp_path: Path) -> None:
        data: dict[str, Any] = {"artifacts": [], "force_include": {}}
        self.hook(tmp_path).initialize("standard", data)
        name = build.LIBRARY.name
        assert built == [(tmp_path / "model" / "kernels" / name, None, None)]
        assert data["artifacts"] == [f"model/kernels/{name}"]
        assert data["tag"].startswith("py3-none-")
        assert data["tag"].endswith(("x86_64", "aarch64", "arm64"))
        assert not data["pure_python"]
        with pytest.raises(RuntimeError, match="needs a clone"):
            self.hook(tmp_path).initialize("editable", {"artifacts": [], "force_include": {}})
        (tmp_path / "src" / "lightwell" / "server").mkdir(parents=True)
        self.hook(tmp_path).initialize("editable", {"artifacts": [], "force_include": {}})
        assert built[1][2] == build.own_levels()

    def test_is_refused_for_an_older_python_before_a_compiler_is_looked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hatch_build._build.cache_clear()
        monkeypatch.setattr(sys, "version_info", (3, 10, 13))
        monkeypatch.setenv("CXX", "/nonexistent")
        assert self.hook(tmp_path).dependencies() == []
        with pytest.raises(RuntimeError, match=r"^Lightwell needs Python 3\.11 or later; this is [\d.]+$"):
            self.hook(tmp_path).initialize("standard", {})

    def test_has_metadata_for_pip_without_a_kernel_being_compiled(self, tmp_path: Path) -> None:
        root = build.SOURCES.parents[2]
        for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE", "model/kernels/build.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, tmp_path / name)
        steps = (f"print(hatch_build.prepare_metadata_for_build_{kind}('.'))" for kind in ("wheel", "editable"))
        code = "; ".join(["import hatch_build", *steps])
        environment = {"PYTHONPATH": "", "PIP_BUILD_TRACKER": "set by pip"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        [folder] = {*done.stdout.split()}
        assert "Requires-Python: >=3.11" in (tmp_path / folder / "METADATA").read_text()
        assert [path.name for path in (tmp_path / "model" / "kernels").iterdir()] == ["build.py"]

    @pytest.mark.parametrize("target", build.TARGETS)
    def test_of_another_is_named_after_that_and_made_aside(
        self, target: str, built: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(hatch_build.TARGET_VARIABLE, target)
        data: dict[str, Any] = {"artifacts": [], "force_include": {}}
        self.hook(tmp_path).initialize("standard", data)
        [(made, *others)] = built
        assert others == [target, None]
        assert made.is_relative_to(tmp_path / "build")
        assert made.suffix == (".dylib" if target.startswith("macosx") else ".so")
        assert data["force_include"] == {str(made): f"lightwell/model/kernels/{made.name}"}
        assert data["artifacts"] == []
        assert data["tag"] == f"py3-none-{target}"
