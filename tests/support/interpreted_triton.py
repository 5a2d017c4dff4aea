"""Makes Triton's interpreter faster for tests: it repeats less work.

Uses private functions of Triton, checked against version 3.7.1.
"""

import inspect
from functools import cache
from typing import Any


class _NoPatch:
    def restore(self) -> None:
        """Do nothing: the launch that made the patch restores it."""


def make_interpreter_faster() -> None:
    """Change the interpreter for the rest of the process.

    Each launch of a kernel patches `triton.language` once, instead of at each call of a function in it. Sums of
    integers are not computed a second time to detect an overflow, which no card detects. Dtypes are looked up once.
    """
    import triton.language as tl  # only the extra test-gpu installs it
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] | None = None
    """Names of the modules that the launch in progress has patched."""

    @cache
    def names_of(function: Any) -> set[str]:
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return {module.__name__ for module in modules if module in (tl, tl.core)}

    def patch_once(function: Any) -> Any:
        names = names_of(function)
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

    dtype_of = interpreter._get_np_dtype
    dtypes: dict[str, Any] = {}

    def dtype_by_name(dtype: Any) -> Any:
        found = dtypes.get(dtype.name)
        if found is None:
            found = dtypes[dtype.name] = dtype_of(dtype)
        return found

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_with_one_patch
    interpreter._get_np_dtype = dtype_by_name
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
