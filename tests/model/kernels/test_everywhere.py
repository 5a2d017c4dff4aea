"""Every kernel, as recorded by `tape.py` from the tests next to this file, repeated without Python: by libraries of
other compilers, on other CPUs (qemu); and the same tests under sanitizers. All of it is compared bit for bit.
"""

import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from model.kernels import build, library
from tests.model.kernels import emulated_tiles
from tests.model.kernels.sanitizers import sanitized_library, sanitizer_variables
from tests.model.kernels.tape import Call

pytestmark = [
    pytest.mark.tool,
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="kernels are tried everywhere by `make test-nightly`"),
]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
ZIG = ROOT / ".tools" / "zig" / "bin" / "python"
LOWEST = {arch: next(iter(levels)) for arch, levels in build.LEVELS.items()}
ON_AARCH64 = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu")
needs_x86 = pytest.mark.skipif(build.architecture() != "x86_64", reason="levels of x86-64 are repeated on x86-64")


def run(*command: str | Path, given: bytes = b"", **environment: str) -> bytes:
    """Return what a command writes; it must succeed."""
    wanted = {name: value for name, value in os.environ.items() if name != "TEST_TOOLS"} | environment
    done = subprocess.run(command, input=given, env=wanted, cwd=ROOT, capture_output=True, check=False, timeout=1200)
    assert done.returncode == 0, ((b"" if given else done.stdout[-5000:]) + done.stderr[-5000:]).decode(
        errors="replace"
    )
    return done.stdout


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everywhere")


@pytest.fixture(scope="module")
def calls(room: Path) -> list[Call]:
    """Calls of every kernel at every level of this machine."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.model.kernels.tape", HERE)
    run(*command, TAPE=str(room / "tape"))
    found: list[Call] = pickle.loads((room / "tape").read_bytes())
    return [call for call in found if call.level in library.levels()]  # tiles were emulated where the CPU has none


@pytest.fixture(scope="module")
def foreign(room: Path) -> dict[str, tuple[Path, Path]]:
    """For each architecture, the library as a wheel has it and the program that repeats calls, both built by zig."""
    made = {}
    for arch in build.LEVELS:
        target = f"manylinux_2_17_{arch}"
        kernels, replay = room / f"{arch}.so", room / f"replay-{arch}"
        run(ZIG, "model/kernels/build.py", "--target", target, "--output", kernels)
        zig = (ZIG, "-m", "ziglang", "cc", "-target", build.TARGETS[target])
        run(*zig, "-O1", "-Wall", "-Wextra", "-Werror", HERE / "replay.c", "-o", replay, "-ldl")
        made[arch] = replay, kernels
    return made


def repeat(calls: list[Call], level: str | None, *command: str | Path) -> list[str]:
    """Return what differs from the recording when a program repeats the calls, at a level or at the recorded ones."""
    assert calls
    tape = struct.pack("<q", len(calls)) + b"".join(call.write(level or call.level) for call in calls)
    left, start, differing = run(*command, given=tape), 0, []
    assert len(left) == sum(call.size for call in calls)
    for call in calls:
        differing += call.differing(left[start : start + call.size])
        start += call.size
    return differing


def test_every_kernel_is_recorded_and_does_something(calls: list[Call]) -> None:
    """Check that each call changed memory: one that changed none would prove nothing."""
    loaded = Path(os.environ.get(library.LIBRARY_VARIABLE, build.LIBRARY)).read_bytes()
    exported = re.findall(rb"\0(\w+)_%b(?=\0)" % LOWEST[build.architecture()].encode(), loaded)
    changing = {call.name for call in calls if any(each.before != each.after for each in call.memories)}
    assert len(exported) > 20
    assert {name.decode() for name in exported} - changing == set()


@needs_x86
def test_zig_makes_the_same_bits_at_every_level(calls: list[Call], foreign: dict[str, tuple[Path, Path]]) -> None:
    assert repeat(calls, None, *foreign["x86_64"], "2") == []


@needs_x86
def test_a_cpu_with_avx2_alone_runs_its_level(calls: list[Call], foreign: dict[str, tuple[Path, Path]]) -> None:
    """Run AVX2's level on such a CPU: an instruction of a later CPU would end the program."""
    emulator = "qemu-x86_64", "-cpu", "Haswell"
    assert run(*emulator, *foreign["x86_64"]) == b"1\n"
    # One thread, whose neighbouring memory can be read: qemu 7 also reads the lanes that a masked load leaves out.
    assert repeat([call for call in calls if call.level == "avx2"], None, *emulator, *foreign["x86_64"], "1") == []


@needs_x86
def test_a_cpu_without_avx2_has_no_level(foreign: dict[str, tuple[Path, Path]]) -> None:
    assert run("qemu-x86_64", "-cpu", "Nehalem", *foreign["x86_64"]) == b"0\n"


@pytest.mark.parametrize(("cpu", "level"), [("cortex-a72", "neon"), ("max", "neon"), ("max", "neon_bf16")])
def test_aarch64_makes_the_same_bits(
    cpu: str, level: str, calls: list[Call], foreign: dict[str, tuple[Path, Path]]
) -> None:
    """Compare float32, int8 and widened bfloat16: at the lowest level no instruction takes two bfloat16 at a time."""
    there = list(build.LEVELS["aarch64"])
    assert run(*ON_AARCH64, cpu, *foreign["aarch64"]) == b"1\n" if cpu != "max" else b"%d\n" % len(there)
    lowest = [call for call in calls if call.level == LOWEST[build.architecture()]]
    for threads in ("1", "3"):
        assert repeat(lowest, level, *ON_AARCH64, cpu, *foreign["aarch64"], threads) == []


def test_macos_compiles(room: Path) -> None:
    """Only compile for macOS: nothing here can run it."""
    run(ZIG, "model/kernels/build.py", "--strict", "--target", "macosx_11_0_arm64", "--output", room / "kernels.dylib")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_compiler_has_nothing_to_warn_of(compiler: str, room: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    run(sys.executable, "model/kernels/build.py", "--strict", "--compiler", compiler, "--output", room / "strict.so")


def test_no_address_is_outside_and_nothing_is_undefined() -> None:
    """Run the tests next to this one, with kernels by g++ whose every access is checked."""
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", HERE),
        **sanitizer_variables(),
        LIGHTWELL_KERNEL_LIBRARY=str(sanitized_library()),
    )


@needs_x86
def test_no_address_is_outside_where_tiles_are_read(room: Path) -> None:
    """Check the reads of AMX tiles, in software, which reads whole tiles."""
    kernels = room / "sanitized-tiles.so"
    emulated_tiles.build_library(kernels, sanitize=True)
    files = [f"{HERE}/test_{name}.py" for name in ("products", "int8", "decoder", "encoder")]
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.model.kernels.emulated_tiles", *files),
        **sanitizer_variables(),
        LIGHTWELL_KERNEL_LIBRARY=str(kernels),
    )


def test_threads_of_the_pool_do_not_race(room: Path) -> None:
    """Run several callers at once and change the pool's size, under ThreadSanitizer."""
    sources = build.SOURCES / "threads" / "pool.cpp", HERE / "stress.cpp"
    flags = "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-DLEVEL=base", f"-I{build.SOURCES}", "-lpthread"
    run("g++", *sources, *flags, "-o", room / "stress")
    elsewhere = int(run(room / "stress", TSAN_OPTIONS="halt_on_error=1"))
    assert elsewhere > 0
