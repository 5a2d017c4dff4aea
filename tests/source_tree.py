"""The source of the project as trees: its files, and the imports of each."""

import ast
from collections.abc import Iterator
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


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield each dotted name that an import statement anywhere under `tree` may bind, relative ones not allowed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the direction"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def runtime_statements(tree: ast.Module) -> ast.Module:
    """Return the statements that run on import, without function bodies and `if TYPE_CHECKING` blocks."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST:
            if "TYPE_CHECKING" in ast.unparse(node.test):
                return ast.Module(node.orelse, [])
            return self.generic_visit(node)

    cut = Cut().visit(tree)
    assert isinstance(cut, ast.Module)
    return cut


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def runtime_names(module: str) -> frozenset[str]:
    """Return each dotted name that importing a module of model/ or server/ may bind."""
    return frozenset(imported_names(runtime_statements(parse(MODULES[module]))))


def own_imports(tree: ast.AST, itself: str) -> set[str]:
    return {name for name in imported_names(tree) if name in MODULES and name != itself}


def libraries(tree: ast.AST) -> set[str]:
    ours = {"lightwell_command", "model", "server", "__future__"}
    return {name.split(".")[0] for name in imported_names(tree)} - ours


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of model/ and server/ that each of them imports."""
    return {module: own_imports(parse(path), module) for module, path in MODULES.items()}


PLACES = sorted({module_name(path) for path in MODULES.values() if path.name == "__init__.py"})


def absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
