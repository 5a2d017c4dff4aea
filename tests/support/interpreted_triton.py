"""Changes of Triton's interpreter for tests: less repeated work, and products with the same bits for every shape and
CPU.

Uses private functions of Triton, checked against version 3.7.1.
"""

import inspect
from typing import Any

import pytest


class _NoPatch:
    def restore(self) -> None:
        """Do nothing: the launch that made the patch restores it."""


def patch_the_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each launch of a kernel patch `triton.language` once, instead of at each call of a function in it.

    Interpreted kernels take a third less time.
    """
    import triton.language as tl  # only the extra test-gpu installs it
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] | None = None
    """Names of the modules that the launch in progress has patched."""

    def patch_once(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        names = {module.__name__ for module in modules if module in (tl, tl.core)}
        if patched is not None:
            if names <= patched:
                return _NoPatch()
            patched.update(names)
        return patch(function)

    def launch_with_one_patch(executor: Any, *arguments: Any, **options: Any) -> None:
        nonlocal patched
        patched = set()
        try:
            launch(executor, *arguments, **options)
        finally:
            patched = None

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_with_one_patch)
