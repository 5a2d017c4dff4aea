"""Compiles the kernels under `cpu/` into one library, for the highest level of this CPU or for every level.

    python model/kernels/build.py [--all-levels] [--if-stale] [--compiler "clang++ --flag"] [--target NAME]
        [--output FILE] [--sanitize] [--strict]

`hatch_build.py` runs it when the package is built, for every level except in an editable install. It uses any C++20
compiler of the machine, or else PyPI's `ziglang`, which also compiles for other machines. It imports only the standard
library, and never runs in a server.
"""

import argparse
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""Platforms of wheels: the end of a wheel's name, and zig's name."""


def library_name(target: str | None = None) -> str:
    """Return the library's file name on one of `TARGETS`, by default on this machine."""
    return "kernels.dylib" if (target or sys.platform).startswith(("darwin", "macosx")) else "kernels.so"


SOURCES = Path(__file__).resolve().parent / "cpu"
LIBRARY = SOURCES.parent / library_name()
"""The library's path, next to the Python that loads it."""

_ONCE = ("levels.cpp", "threads/pool.cpp", "threads/scratch.cpp")
"""Files without arithmetic, compiled for the oldest CPU."""

_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
_AVX512 = (*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "cd", "dq", "vl")), "-mprefer-vector-width=512")
_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx2": _AVX2,
        "avx512": _AVX512,
        "avx512_bf16": _BF16,
        "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    },
    "aarch64": {"neon": (), "neon_bf16": ("-march=armv8.2-a+bf16+i8mm",)},
}
"""The levels of each architecture from the lowest, with the compiler's flags; `levels.cpp` counts them from 1."""

# The compiler must not reorder sums or contract products and sums: both would change bits.
_FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"),
    *("-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wall", "-Wextra"),
    *("-Wno-psabi", "-g0"),
)
# Options of g++. Calls check addresses, and undefined behaviour is an illegal instruction: inline checks with messages
# would take ten times as long to compile. The address check finds null pointers and accesses outside of objects.
_SANITIZE = (
    *("-fsanitize=address,undefined", "-fno-sanitize=null,object-size,pointer-overflow"),
    *("-fsanitize-undefined-trap-on-error", "--param=asan-instrumentation-with-call-threshold=0"),
    *("-fno-omit-frame-pointer", "-g1", "-O1"),
)
_CANDIDATES = ("c++", "g++", "clang++")
_TRIAL = """\
#include <pthread.h>
#include <stdint.h>
static_assert(__cplusplus >= 202002L);
template <class T> concept Any = true;
"""


def architecture(target: str | None = None) -> str:
    """Return the architecture of one of `TARGETS`, by default this machine's: a key of `LEVELS`."""
    machine = TARGETS[target].partition("-")[0] if target else platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def find_compiler(target: str | None = None) -> tuple[str, ...] | None:
    """Return the command of a C++20 compiler, or None: the environment's CXX, one of the machine's, or PyPI's
    `ziglang`, the only one for a target.
    """
    named = os.environ.get("CXX")
    commands = [tuple(shlex.split(named))] if named else [(name,) for name in _CANDIDATES if shutil.which(name)]
    here = f"{architecture()}-{'macos.' if sys.platform == 'darwin' else 'linux-gnu.'}"
    # This machine needs a target too, or zig would use all instructions of this CPU at every level.
    triple = TARGETS[target] if target else next((each for each in TARGETS.values() if each.startswith(here)), "native")
    zig = (sys.executable, "-m", "ziglang", "c++", "-target", triple)
    return next(filter(_compiles, [zig] if target else [*commands, zig]), None)


def _compiles(command: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text(_TRIAL)
        try:
            done = subprocess.run(
                [*command, "-std=c++20", "-c", str(source), "-o", str(source.with_suffix(".o"))],
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
        return done.returncode == 0


def sources_hash() -> int:
    """Return a hash of the sources, 64 bits. A library contains the hash of its own sources."""
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".h"))
    return int.from_bytes(hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).digest()[:8], "big")


def compiled_levels(library: Path) -> tuple[str, ...]:
    """Return the levels of a library, from the lowest. The file is not loaded: it may be for another machine."""
    found = re.search(rb"lightwell levels: ([a-z0-9_ ]*)\0", library.read_bytes())
    return tuple(found[1].decode().split()) if found else ()


def own_levels(compiler: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the highest level of this CPU, or nothing if it has none. A library reads the level; if there is none, one
    without kernels is compiled. Raises RuntimeError as `build` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = LIBRARY
        if not is_current(levels=()):
            library = Path(folder) / LIBRARY.name
            build(library, compiler=compiler, levels=())
        return tuple(LEVELS[architecture()])[: ctypes.CDLL(str(library)).lightwell_highest_level()][-1:]


def is_current(output: Path = LIBRARY, *, target: str | None = None, levels: Collection[str] | None = None) -> bool:
    """Return whether the library exists, has these levels (by default all) and is newer than its sources."""
    sources = [Path(__file__), *SOURCES.rglob("*")]
    wanted = LEVELS.get(architecture(target), ()) if levels is None else levels
    return (
        output.exists()
        and output.stat().st_mtime > max(path.stat().st_mtime for path in sources)
        and {*wanted} <= {*compiled_levels(output)}
    )


def build(
    output: Path = LIBRARY,
    *,
    compiler: Sequence[str] | None = None,
    target: str | None = None,
    levels: Collection[str] | None = None,
    sanitize: bool = False,
    strict: bool = False,
) -> None:
    """Compile and link the library, and replace an existing one.

    compiler: its command, by default from `find_compiler`. target: a key of `TARGETS`, by default this machine. levels:
    by default all. sanitize: with g++'s sanitizers of addresses and undefined behaviour. strict: a warning is an error.

    Raises RuntimeError without a compiler, for a failed compilation (with the compiler's output), and for an
    architecture without levels.
    """
    command = tuple(compiler or find_compiler(target) or ())
    arch = architecture(target)
    if not command:
        needed = "PyPI's ziglang" if target else "g++, clang or PyPI's ziglang, or set CXX"
        raise RuntimeError(f"no C++20 compiler was found: install {needed}")
    if arch not in LEVELS:
        raise RuntimeError(f"no kernels are known for {arch}; there are some for {', '.join(LEVELS)}")
    wanted = {level: flags for level, flags in LEVELS[arch].items() if levels is None or level in levels}
    extra = (*(_SANITIZE if sanitize else ()), *(("-Werror",) if strict else ()))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".building-") as folder:
        jobs: list[tuple[Path, Path, tuple[str, ...]]] = []
        once = ("-DLEVEL=base", f"-DSOURCES_HASH={sources_hash()}UL", f'-DCOMPILED_LEVELS="{" ".join(wanted)}"')
        jobs += [(SOURCES / name, Path(folder) / f"{Path(name).stem}.o", once) for name in _ONCE]
        for level, flags in reversed(wanted.items()):
            jobs += [
                (path, Path(folder) / f"{path.stem}-{level}.o", (f"-DLEVEL={level}", *flags))
                for path in sorted(SOURCES.rglob("*.cpp"))
                if str(path.relative_to(SOURCES)) not in _ONCE
            ]

        def compile_one(job: tuple[Path, Path, tuple[str, ...]]) -> Path:
            source, made, flags = job
            if "ziglang" in command:  # it has another option for the architecture
                flags = tuple(flag.replace("-march=armv8.2-a", "-mcpu=generic") for flag in flags)
            _run([*command, *_FLAGS, f"-I{SOURCES}", *flags, *extra, "-c", str(source), "-o", str(made)])
            return made

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as pool:
            objects = list(pool.map(compile_one, jobs))
        whole = Path(folder) / output.name
        # The kernels do not use the C++ library: zig need not build it, and a machine loads the kernels without it.
        linker = ["cc" if each == "c++" and "ziglang" in command else each for each in command]
        libraries = () if library_name(target).endswith("dylib") else ("-Wl,--as-needed", "-lpthread")
        _run([*linker, *extra, "-shared", *map(str, objects), "-o", str(whole), *libraries])
        os.replace(whole, output)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all-levels", action="store_true", help="every level, not only this CPU's highest")
    parser.add_argument(
        "--if-stale", action="store_true", help="only if the library lacks a level or is older than its sources"
    )
    parser.add_argument("--compiler", type=shlex.split, help="a compiler's command, with flags")
    parser.add_argument("--target", choices=TARGETS, help="to compile for, in place of this machine: every level")
    parser.add_argument("--output", type=Path, default=LIBRARY)
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    parser.add_argument("--strict", action="store_true", help="take warnings for errors")
    options = vars(parser.parse_args())
    is_for_all = options.pop("all_levels") or options["target"]
    levels = None if is_for_all else own_levels(options["compiler"])
    if not (options.pop("if_stale") and is_current(options["output"], target=options["target"], levels=levels)):
        build(**options, levels=levels)
