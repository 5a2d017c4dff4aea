"""The shape of the house, read from the source: which way imports point, what each part may know, how long files get.

Knows nothing of what the code does. A new file must be given its layer here, and its line in the tree of docs/code.md.
"""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the top down. A module imports from its own layer or from those under it.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cli", ("server.cli", "server.__main__")),
    ("app", ("server.app", "server.sizing", "server.kernel_report", "server.kernel_rates")),
    (
        "routes and processes",
        ("server.routes", "server.routes.*", "server.lit_api", "server.loop", "server.supervisor", "server.processes"),
    ),
    (
        "reaching the worker",
        (
            "server.engine_client", "server.worker_state", "server.worker_socket", "server.worker_watch",
            "server.request_handle", "server.admission", "server.link", "server.drain", "server.stacks",
            "server.state_report", "server.routing",
        ),
    ),
    (
        "words of the wire",
        (
            "server.schemas", "server.schemas.*", "server.errors", "server.metrics", "server.metric_aliases",
            "server.messages",
            "server.keys", "server.key_limits", "server.json_reader", "server.rates", "server.browsers",
            "server.settings", "server.setting_kinds", "server.selectors", "server.web_assets", "server.tensors",
            "server.sse",
            "server.trace_plan", "server.trace_body", "server.intervention_plan",
            "server.request_log", "server.logs", "server.tracing", "server.version", "server.http_protocol",
            "server.model_fingerprint", "server.devices", "server.health_check",
        ),
    ),
    ("server", ("server",)),
    ("engine", ("server.engine", "server.engine.*")),
    ("model", ("model", "model.*")),
)  # fmt: skip

SHELL_LIBRARIES = {"litserve", "fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "httpx"}
STANDARD_LIBRARY_ONLY = (
    "scheduler", "line", "block_manager", "sequence", "sampling_params", "request", "outputs", "needs", "look_budget",
    "prompt_budget", "set_aside", "abandonment",
)  # fmt: skip
WITHOUT_TORCH = (
    "model", "model.config", "model.checkpoint.folder", "model.tokenization.tokenizer", "model.tokenization.chat_template", "model.tokenization.detokenizer", "model.hooks.points",
    "model.hooks.point_names", "model.checkpoint.registry", "model.checkpoint.weight_maps", "model.network.sentence_transformers",
    "model.checkpoint.generation_defaults",
    "model.analysis.census", "model.analysis.census_report", "model.analysis.matrices", "model.analysis.spectra",
    "model.analysis.correlations", "model.analysis.rollout",
)  # fmt: skip

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70

PAGE = ROOT / "server" / "web" / "page"
MAX_PAGE_COLUMNS = 140  # as ruff holds Python's, with some room for templates
# Of the page, from the bottom up; what lies in PAGE itself puts the views together and is imported by none of these.
PAGE_LAYERS = ("vendor", "core", "parts", "views")


def python_files(*tops: str) -> list[Path]:
    # model/fables/recipe.py is kept as it was when it made the weights, and is imported by nothing.
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py") if "fables" not in path.parts)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files("model", "server")}


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Each dotted name that an import statement anywhere under `tree` may bind, relative ones not allowed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the direction"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def runtime_statements(tree: ast.Module) -> ast.Module:
    """What runs on import: function bodies and `if TYPE_CHECKING` blocks taken out."""

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


def own_imports(tree: ast.AST, itself: str) -> set[str]:
    return {name for name in imported_names(tree) if name in MODULES and name != itself}


def libraries(tree: ast.AST) -> set[str]:
    ours = {"lightwell_command", "model", "server", "__future__"}
    return {name.split(".")[0] for name in imported_names(tree)} - ours


def layer_of(module: str) -> int | None:
    for index, (_, patterns) in enumerate(LAYERS):
        if any(fnmatch(module, pattern) for pattern in patterns):
            return index
    return None


IMPORTS = {module: own_imports(parse(path), module) for module, path in MODULES.items()}


def test_every_module_has_its_place_in_the_layers() -> None:
    homeless = [module for module in MODULES if layer_of(module) is None]
    assert not homeless, f"give these a layer in {Path(__file__).name}: {homeless}"


def test_imports_point_downwards_only() -> None:
    upwards = [
        f"{module} ({LAYERS[here][0]}) imports {name} ({LAYERS[there][0]})"
        for module, names in IMPORTS.items()
        for name in sorted(names)
        if (here := layer_of(module)) is not None and (there := layer_of(name)) is not None and there < here
    ]
    assert not upwards


def test_no_imports_go_in_circles_not_even_lazy_ones() -> None:
    def walk(module: str, path: tuple[str, ...]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for name in sorted(IMPORTS[module]):
            if circle := walk(name, (*path, module)):
                return circle
        done.add(module)
        return None

    done: set[str] = set()
    circles = [" -> ".join(circle) for module in sorted(MODULES) if (circle := walk(module, ()))]
    assert not circles


def test_the_engine_and_the_model_know_no_web_framework() -> None:
    knowing = {
        module: found
        for module, path in MODULES.items()
        if module.startswith(("server.engine", "model")) and module != "server.engine_client"
        if (found := libraries(parse(path)) & SHELL_LIBRARIES)
    }
    assert not knowing


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_policy_needs_the_standard_library_only(name: str) -> None:
    tree = parse(MODULES[f"server.engine.{name}"])
    assert libraries(tree) <= set(sys.stdlib_module_names)
    assert libraries(parse(MODULES["model.hooks.points"])) <= set(sys.stdlib_module_names)
    allowed = {"model.hooks.points", *(f"server.engine.{other}" for other in STANDARD_LIBRARY_ONLY)}
    assert own_imports(tree, f"server.engine.{name}") - {"server", "server.engine", "model"} <= allowed


def loaded_by(start: str) -> set[str]:
    """Our modules that importing `start` runs, packages above them included."""
    reached: set[str] = set()
    left = [start]
    while left:
        module = left.pop()
        if module in reached:
            continue
        reached.add(module)
        parents = {".".join(module.split(".")[:i]) for i in range(1, module.count(".") + 1)}
        left += (own_imports(runtime_statements(parse(MODULES[module])), module) | parents) & MODULES.keys()
    return reached


@pytest.mark.parametrize("start", ["server.cli", "server.app", "server.lit_api", "server.loop", *WITHOUT_TORCH])
def test_what_the_api_process_imports_never_names_torch(start: str) -> None:
    naming = [
        module
        for module in sorted(loaded_by(start))
        if {"torch", "transformers"} & libraries(runtime_statements(parse(MODULES[module])))
    ]
    assert not naming


def test_the_api_process_runs_without_torch() -> None:
    modules = ["server.cli", "server.app", "server.lit_api", "server.loop", *WITHOUT_TORCH]
    code = f"import sys, {', '.join(modules)}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted_ones = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    declared = {re.split(r"[<>=!~; \[]", wanted)[0].lower() for wanted in wanted_ones}
    providers = packages_distributions()
    missing = {
        f"{module} imports {library}"
        for module, path in MODULES.items()
        for library in libraries(parse(path))
        - set(sys.stdlib_module_names)
        - {"pydantic_core", "typing_extensions"}  # parts of pydantic
        if not declared & {name.lower().replace("_", "-") for name in providers.get(library, [library])}
    }
    assert not missing


def test_the_client_imports_nothing_of_ours() -> None:
    ours = {"model", "server", "tests", "benchmarks"}
    knowing = {
        str(path.relative_to(ROOT)): found
        for path in python_files("clients")
        if (found := {name.split(".")[0] for name in absolute_imports(path)} & ours)
    }
    assert not knowing


def absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    missing = [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert not missing, "without __init__.py, tests/server passes itself off as server"


def test_every_file_opens_with_what_it_does() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("model", "server", "clients", "tests", "benchmarks")
        if (tree := parse(path)).body and not ast.get_docstring(tree)
    ]
    assert not silent


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in python_files("model", "server", "clients"):
        name = path.relative_to(ROOT)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert not long


def page_files(*suffixes: str) -> list[Path]:
    """The page's own files of these kinds."""
    return sorted(path for path in PAGE.rglob("*") if path.suffix in suffixes and "vendor" not in path.parts)


SCRIPT_IMPORT = re.compile(
    r"""^(?:import|export)\b[^"'=;]*\bfrom\s*["']([^"']+) | ^import\s*["']([^"']+) | \bimport\(\s*["']([^"']+)""",
    re.MULTILINE | re.VERBOSE,
)


def script_imports(path: Path) -> set[str]:
    """The files that a script imports, at once or later, by their path in the page."""
    matches = SCRIPT_IMPORT.findall(path.read_text(encoding="utf-8"))
    return {(path.parent / "".join(match)).resolve().relative_to(PAGE).as_posix() for match in matches}


def test_the_pages_files_lines_and_functions_stay_short() -> None:
    long = []
    for path in page_files(".js", ".css", ".html"):
        name = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_FILE_LINES:
            long.append(f"{name}: {len(lines)} lines")
        long += [f"{name}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > MAX_PAGE_COLUMNS]
        start = None
        for i, line in enumerate(lines, 1):
            if re.match(r"(export )?(async )?function\b", line):
                start = i
            elif line == "}" and start is not None:
                if i - start + 1 > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{start}: a function of {i - start + 1} lines")
                start = None
    assert not long


def test_the_pages_files_open_with_what_they_do() -> None:
    opening = {".js": "// ", ".css": "/* "}
    silent = [
        str(path.relative_to(ROOT))
        for path in page_files(*opening)
        if not path.read_text(encoding="utf-8").startswith(opening[path.suffix])
    ]
    assert not silent


def test_the_pages_imports_point_downwards_only() -> None:
    wrong = []
    for path in page_files(".js"):
        here = path.relative_to(PAGE).as_posix()
        for name in sorted(script_imports(path)):
            assert (PAGE / name).is_file(), f"{here} imports {name}, which is not there"
            folder, above = name.partition("/")[0], here.partition("/")[0]
            if folder == "vendor":
                allowed = here == "core/html.js"
            else:
                # the list of views is a file of the page itself: views may look into it
                layers = {layer: i for i, layer in enumerate(PAGE_LAYERS)}
                allowed = layers.get(folder, layers["views"]) <= layers.get(above, len(PAGE_LAYERS))
            if not allowed:
                wrong.append(f"{here} imports {name}")
    assert not wrong


def test_the_pages_scripts_never_make_html_or_code_of_text() -> None:
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bnew Function\b")
    found = [
        f"{path.relative_to(ROOT)}: {way}"
        for path in page_files(".js", ".html")
        for way in ways.findall(path.read_text(encoding="utf-8"))
    ]
    assert not found


FABLES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
          "chat_template.jinja", "README.md", "recipe.py")  # fmt: skip
DOCS_PAGE = ("start.js", "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png", "LICENSE", "NOTICE")


def test_wheel_and_sdist_carry_the_default_model_and_the_pages(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    needed = {"lightwell_command.py", *(str(path.relative_to(ROOT)) for path in MODULES.values())}
    needed |= {f"model/fables/{name}" for name in FABLES}
    needed |= {f"server/web/docs/{name}" for name in DOCS_PAGE}
    needed |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "server" / "web" / "page").rglob("*.*")}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert needed <= set(wheel.namelist())
        assert not [name for name in wheel.namelist() if name.startswith(("tests/", "clients/", "benchmarks/"))]
        for name in ("model/fables/model.safetensors", "model/fables/tokenizer.json"):
            assert wheel.read(name) == (ROOT / name).read_bytes()
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        assert needed <= {name.partition("/")[2] for name in sdist.getnames()}
