"""The structure of the repository, read from the source: which way imports point, what each part may know, how long
files get.

It knows nothing of what the code does. A new folder, and an arrow to another, must be named here.
"""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each room of server/ and model/, a folder or a file of theirs, and the rooms that it may import. From the top down.
MAY_IMPORT = {
    "server.__main__": "",
    "server.cli": "model.analysis model.checkpoint model.tokenization server.app server.auth server.config "
                  "server.lifecycle server.observability server.version",
    "server.app": "model.checkpoint model.config model.network model.tokenization server.auth server.config "
                  "server.dispatch server.http server.lifecycle server.observability server.routes server.version "
                  "server.worker",
    "server.lifecycle": "server.config server.dispatch server.engine server.http server.worker",
    "server.routes": "model.analysis model.checkpoint model.config model.hooks model.kernels model.network "
                     "model.sampling model.tokenization server.auth server.config server.dispatch server.engine "
                     "server.http server.ipc server.observability server.schemas server.version",
    "server.worker": "server.config server.dispatch server.engine server.ipc server.observability",
    "server.dispatch": "server.auth server.config server.engine server.http server.ipc server.observability",
    "server.schemas": "server.auth server.engine server.http",
    "server.http": "server.engine server.observability",
    "server.observability": "server.auth server.config server.engine server.version",
    "server.config": "model.analysis model.checkpoint model.config model.kernels model.sharding server.auth "
                     "server.engine",
    "server.ipc": "model.hooks server.engine",
    "server.auth": "",
    "server.version": "",
    "server.engine": "model.analysis model.batch model.checkpoint model.config model.hooks model.kernels "
                     "model.kv_cache model.layers model.loading model.network model.ranks model.sampling "
                     "model.sharding",
    "model.ranks": "model.analysis model.batch model.checkpoint model.config model.hooks model.kernels model.kv_cache "
                   "model.layers model.loading model.network model.sampling model.sharding",
    "model.loading": "model.checkpoint model.config model.kernels model.layers model.network model.sharding",
    "model.analysis": "model.checkpoint model.config model.hooks model.kernels model.layers model.network",
    "model.sharding": "model.batch model.checkpoint model.config model.hooks model.kernels model.kv_cache "
                      "model.layers model.network",
    "model.network": "model.batch model.checkpoint model.config model.hooks model.kernels model.kv_cache "
                     "model.layers model.sampling",
    "model.hooks": "model.batch model.config model.kernels model.kv_cache model.layers",
    "model.sampling": "model.kernels model.layers",
    "model.layers": "model.batch model.config model.kernels model.kv_cache",
    "model.batch": "model.kernels",
    "model.kv_cache": "model.checkpoint model.config",
    "model.tokenization": "model.checkpoint",
    "model.checkpoint": "model.config",
    "model.kernels": "model.config",
    "model.config": "",
}  # fmt: skip
MOST_ENTRIES = {"server": 16, "model": 16}
"""Most entries of a folder besides __init__.py; files written for one family of models each, in any number, are not
counted.
"""
MOST_ENTRIES_ELSEWHERE = 20

SHELL_LIBRARIES = {"litserve", "fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "httpx"}
STANDARD_LIBRARY_ONLY = (
    "scheduling.scheduler", "scheduling.scheduler_config", "scheduling.schedule", "scheduling.deadlines",
    "scheduling.fair_queue",
    "scheduling.block_manager", "scheduling.capture_budget", "scheduling.prompt_budget", "sequence",
    "sampling_params", "request", "outputs", "depth", "required_layers", "failure",
    "memory.memory_retry", "memory.memory_limit", "memory.cgroups", "execution.step_cancellation",
)  # fmt: skip
WITHOUT_TORCH = (
    "model", "model.config", "model.checkpoint.folder", "model.checkpoint.registry", "model.checkpoint.weight_maps",
    "model.checkpoint.generation_defaults", "model.tokenization.tokenizer", "model.tokenization.chat_template",
    "model.tokenization.detokenizer", "model.hooks.points", "model.hooks.point_names",
    "model.network.sentence_transformers",
    "model.analysis.census", "model.analysis.census_report", "model.analysis.matrices", "model.analysis.spectra",
    "model.analysis.correlations", "model.analysis.rollout",
)  # fmt: skip

LITSERVE_DOOR = "server/lifecycle/litserve_adapter.py"
MAX_DOOR_LINES = 150

MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 70

PAGE = ROOT / "server" / "web" / "page"
MAX_PAGE_COLUMNS = 140  # as ruff holds Python's, with some room for templates
# Of the page, from the bottom up; what lies in PAGE itself puts the views together and is imported by none of these.
PAGE_LAYERS = ("vendor", "core", "parts", "views")


def python_files(*tops: str) -> list[Path]:
    # model/fables/recipe.py is kept as it was when it made the weights, and is imported by nothing.
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
    """Return what runs on import: function bodies and `if TYPE_CHECKING` blocks taken out."""

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


def room_of(module: str, place: str) -> str | None:
    """Return the entry of a folder, by its dotted name, that holds a module, or None if the module is not in the
    folder.
    """
    inner = module.removeprefix(f"{place}.")
    return None if inner == module else f"{place}.{inner.split('.')[0]}"


IMPORTS = {module: own_imports(parse(path), module) for module, path in MODULES.items()}
PLACES = sorted({module_name(path) for path in MODULES.values() if path.name == "__init__.py"})


def imported_rooms(place: str) -> dict[str, set[str]]:
    """Return the entries of a folder, each with those of them that it imports."""
    rooms: dict[str, set[str]] = {room: set() for module in MODULES if (room := room_of(module, place))}
    for module, names in IMPORTS.items():
        here = room_of(module, place)
        if here is not None:
            rooms[here] |= {there for name in names if (there := room_of(name, place)) not in (None, here)}
    return rooms


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a path along the arrows of a graph that comes back to where it began, or None."""
    done: set[str] = set()

    def walk(node: str, path: tuple[str, ...]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for each in sorted(graph[node]):
                if found := walk(each, (*path, node)):
                    return found
            done.add(node)
        return None

    return next((found for node in sorted(graph) if (found := walk(node, ()))), None)


def test_rooms_import_what_they_may_and_no_more() -> None:
    imported: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for module, names in IMPORTS.items():
        here = room_of(module, module.split(".")[0])
        if here is not None:
            rooms = {there for name in names if (there := room_of(name, name.split(".")[0])) not in (None, here)}
            imported.setdefault(here, set()).update(filter(None, rooms))
    assert imported == {room: set(allowed.split()) for room, allowed in MAY_IMPORT.items()}


def test_the_list_of_rooms_runs_from_the_top_down() -> None:
    order = list(MAY_IMPORT)
    upwards = [
        f"{room} may import {other}, which is above it"
        for room, allowed in MAY_IMPORT.items()
        for other in allowed.split()
        if order.index(other) < order.index(room)
    ]
    assert not upwards


@pytest.mark.parametrize("place", PLACES)
def test_no_imports_go_in_circles_between_a_folders_rooms(place: str) -> None:
    assert circle(imported_rooms(place)) is None


def test_no_imports_go_in_circles_not_even_lazy_ones() -> None:
    assert circle(IMPORTS) is None


def test_a_folder_holds_few_entries_and_says_what_it_is() -> None:
    wrong = []
    for place in PLACES:
        folder = ROOT / place.replace(".", "/")
        entries = [p for p in folder.iterdir() if p.name not in ("__init__.py", "__pycache__")]
        if folder.name != "families" and len(entries) > MOST_ENTRIES.get(place, MOST_ENTRIES_ELSEWHERE):
            wrong.append(f"{place} has {len(entries)} entries")
        if not ast.get_docstring(parse(folder / "__init__.py")):
            wrong.append(f"{place}/__init__.py does not say what the folder is for")
    assert not wrong


def test_the_engine_and_the_model_know_no_web_framework() -> None:
    knowing = {
        module: found
        for module, path in MODULES.items()
        if module.startswith(("server.engine", "model")) and module != "server.dispatch.engine_client"
        if (found := libraries(parse(path)) & SHELL_LIBRARIES)
    }
    assert not knowing


def test_litserve_has_one_door() -> None:
    places = python_files("model", "server", "clients", "deploy", "benchmarks")
    knowing = [path.relative_to(ROOT).as_posix() for path in places if "litserve" in libraries(parse(path))]
    assert knowing == [LITSERVE_DOOR]
    assert len((ROOT / LITSERVE_DOOR).read_text(encoding="utf-8").splitlines()) <= MAX_DOOR_LINES
    behind = loaded_by(module_name(ROOT / LITSERVE_DOOR))
    assert not [module for module in sorted(behind) if module.startswith(("server.routes", "server.engine"))]


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_policy_needs_the_standard_library_only(name: str) -> None:
    tree = parse(MODULES[f"server.engine.{name}"])
    assert libraries(tree) <= set(sys.stdlib_module_names)
    assert libraries(parse(MODULES["model.hooks.points"])) <= set(sys.stdlib_module_names)
    allowed = {"model.hooks.points", *(f"server.engine.{other}" for other in STANDARD_LIBRARY_ONLY)}
    packages = {"server", "server.engine", "server.engine.memory", "model"}
    assert own_imports(tree, f"server.engine.{name}") - packages <= allowed


def loaded_by(start: str) -> set[str]:
    """Return our modules that importing `start` runs, packages above them included."""
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


@pytest.mark.parametrize(
    "start", ["server.cli", "server.app", "server.worker.engine_worker", "server.worker.loop", *WITHOUT_TORCH]
)
def test_what_the_api_process_imports_never_names_torch(start: str) -> None:
    naming = [
        module
        for module in sorted(loaded_by(start))
        if {"torch", "transformers"} & libraries(runtime_statements(parse(MODULES[module])))
    ]
    assert not naming


def test_the_api_process_runs_without_torch() -> None:
    modules = ["server.cli", "server.app", "server.worker.engine_worker", "server.worker.loop", *WITHOUT_TORCH]
    code = f"import sys, {', '.join(modules)}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def module_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module binds for itself, each with its first value."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def test_only_routes_and_observability_know_a_context_variable() -> None:
    trees = {module: parse(path) for module, path in MODULES.items()}
    variables = {
        f"{module}.{name}"
        for module, tree in trees.items()
        for name, value in module_values(tree)
        if ast.unparse(value).startswith("ContextVar(")
    }
    assert variables, "this test finds none any more"
    reading = [
        module
        for module, tree in trees.items()
        if not module.startswith(("server.routes", "server.observability"))
        and {"contextvars", *variables} & set(imported_names(tree))
    ]
    assert not reading, "what a request needs travels as an argument: server.dispatch.request_context"


def state_of_the_process(tree: ast.Module) -> Iterator[str]:
    """What a module keeps where its functions can change it: names that they rebind, and values of no constant's name.

    A container that is empty when the module is loaded is there to be filled.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
    for name, value in module_values(tree):
        is_plain = isinstance(value, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Set)
        if (is_plain and name.islower() and name != "__all__") or ast.unparse(value) in ("[]", "{}"):
            yield name


def test_no_flag_of_the_process_changes_what_the_model_computes() -> None:
    kept = [
        f"{module}.{name}"
        for module, path in MODULES.items()
        if module.startswith("model")
        for name in state_of_the_process(parse(path))
    ]
    assert not kept, "what is computed, and how, travels as an argument: model.kernels.choice.KernelConfig"


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
    """Return the page's own files of these kinds."""
    return sorted(path for path in PAGE.rglob("*") if path.suffix in suffixes and "vendor" not in path.parts)


SCRIPT_IMPORT = re.compile(
    r"""^(?:import|export)\b[^"'=;]*\bfrom\s*["']([^"']+) | ^import\s*["']([^"']+) | \bimport\(\s*["']([^"']+)""",
    re.MULTILINE | re.VERBOSE,
)


def script_imports(path: Path) -> set[str]:
    """Return the files that a script imports, at once or later, by their path in the page."""
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
