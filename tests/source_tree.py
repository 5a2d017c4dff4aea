"""The source of the project as trees: its files, and the imports of each."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_files(*tops: str) -> list[Path]:
    # model/fables/recipe.py is kept unchanged since it made the weights; no module imports it.
    return sorted(
        path
        for top in tops
        for path in (ROOT / top).rglob("*.py")
        if not {"fables", ".cache"} & set(path.relative_to(ROOT).parts)
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files("model", "server")}


def short_name(module: str) -> str:
    """Return a module's name without `lightwell.`: as in the paths of its file."""
    return module.removeprefix("lightwell.")


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield each dotted name that an import statement anywhere under `tree` may bind, relative ones not allowed."""
    return bound_names(ast.walk(tree))


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (short_name(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the direction"
            assert node.module is not None
            yield short_name(node.module)
            yield from (short_name(f"{node.module}.{alias.name}") for alias in node.names)


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run on import, without function bodies and `if TYPE_CHECKING` blocks."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    yield node
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for inner in node.orelse if is_for_types else ast.iter_child_nodes(node):
        yield from runtime_nodes(inner)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def runtime_names(module: str) -> frozenset[str]:
    """Return each dotted name that importing a module of model/ or server/ may bind."""
    return frozenset(bound_names(runtime_nodes(parse(MODULES[module]))))


@cache
def names_of(path: Path) -> frozenset[str]:
    """Return each dotted name that a file may import."""
    return frozenset(imported_names(parse(path)))


def own_imports(path: Path, itself: str) -> set[str]:
    return {name for name in names_of(path) if name in MODULES and name != itself}


def libraries(path: Path) -> set[str]:
    ours = {"lightwell", "model", "server", "__future__"}
    return {name.split(".")[0] for name in names_of(path)} - ours


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of model/ and server/ that each of them imports."""
    return {module: own_imports(path, module) for module, path in MODULES.items()}


PLACES = sorted({module_name(path) for path in MODULES.values() if path.name == "__init__.py"})
