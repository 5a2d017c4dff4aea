"""Rules of the source: libraries that each part may use, no process state, short files that describe themselves."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

import pytest

from tests.source_tree import (
    MODULES,
    ROOT,
    imported_names,
    libraries,
    module_name,
    names_of,
    own_imports,
    parse,
    python_files,
    runtime_names,
)

LITSERVE_DOOR = "server/lifecycle/litserve_adapter.py"
MAX_DOOR_LINES = 150
SHELL_LIBRARIES = {"litserve", "fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "httpx"}

POLICY = (
    "scheduling.scheduler", "scheduling.schedule", "scheduling.steady_rows", "scheduling.scheduler_config",
    "scheduling.deadlines", "scheduling.fair_queue", "scheduling.block_contents", "scheduling.speculation",
    "repetitions", "scheduling.block_manager", "scheduling.capture_budget", "scheduling.prompt_budget", "sequence",
    "messages.sampling_params", "messages.request", "messages.outputs", "messages.base_task", "grammar",
    "memory.memory_retry", "memory.process_memory", "memory.cgroups", "execution.step_cancellation",
)  # fmt: skip

WITHOUT_TORCH = (
    "model", "model.config", "model.checkpoint.folder", "model.checkpoint.registry", "model.checkpoint.weight_maps",
    "model.checkpoint.generation_defaults", "model.tokenization.tokenizer", "model.tokenization.chat_template",
    "model.tokenization.detokenizer", "model.hooks.points", "model.hooks.point_names",
    "model.network.sentence_transformers",
    "model.analysis.census", "model.analysis.census_report", "model.analysis.matrices", "model.analysis.spectra",
    "model.analysis.correlations", "model.analysis.rollout",
)  # fmt: skip

MAX_FILE_LINES = 500

MAX_FUNCTION_LINES = 70


def test_the_engine_and_the_model_know_no_web_framework() -> None:
    knowing = {
        module: found
        for module, path in MODULES.items()
        if module.startswith(("server.engine", "model")) and module != "server.dispatch.engine_client"
        if (found := libraries(path) & SHELL_LIBRARIES)
    }
    assert not knowing


def test_litserve_has_one_door() -> None:
    places = python_files("model", "server", "clients", "deploy", "benchmarks")
    knowing = [path.relative_to(ROOT).as_posix() for path in places if "litserve" in libraries(path)]
    assert knowing == [LITSERVE_DOOR]
    assert len((ROOT / LITSERVE_DOOR).read_text(encoding="utf-8").splitlines()) <= MAX_DOOR_LINES
    behind = loaded_by(module_name(ROOT / LITSERVE_DOOR))
    assert not [module for module in sorted(behind) if module.startswith(("server.dialects", "server.engine"))]


@pytest.mark.parametrize("name", POLICY)
def test_policy_needs_two_libraries_and_no_torch(name: str) -> None:
    path = MODULES[f"server.engine.{name}"]
    assert libraries(path) <= {*sys.stdlib_module_names, "msgspec", "numpy"}
    plain = ("model.hooks.points", "model.sampling.grammar.thought_limit")
    assert all(libraries(MODULES[each]) <= set(sys.stdlib_module_names) for each in plain)
    allowed = {*plain, *(f"server.engine.{other}" for other in POLICY)}
    packages = {"server", "server.engine", "server.engine.memory", "server.engine.messages", "model"}
    assert own_imports(path, f"server.engine.{name}") - packages <= allowed


def loaded_by(start: str) -> set[str]:
    """Return our modules that run when `start` is imported, including the packages above them."""
    reached: set[str] = set()
    left = [start]
    while left:
        module = left.pop()
        if module in reached:
            continue
        reached.add(module)
        parents = {".".join(module.split(".")[:i]) for i in range(1, module.count(".") + 1)}
        left += (runtime_names(module) | parents) & MODULES.keys()
    return reached


def test_the_api_process_runs_without_torch() -> None:
    modules = ["server.cli", "server.lifecycle.app", "server.worker.engine_worker", "server.worker.loop"]
    modules += WITHOUT_TORCH
    imported = ", ".join(f"lightwell.{name}" for name in modules)
    code = f"import sys, {imported}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def module_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module binds for itself, each with its first value."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def test_only_requests_and_observability_know_a_context_variable() -> None:
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
        if not module.startswith(("server.dialects", "server.generation", "server.observability"))
        and {"contextvars", *variables} & set(imported_names(tree))
    ]
    assert not reading, "what a request needs travels as an argument: server.dispatch.request_context"


def state_of_the_process(tree: ast.Module) -> Iterator[str]:
    """Yield the module's state that its functions can change: names that they rebind, and values without a constant's
    name.

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
    extras = project["optional-dependencies"]
    wanted_ones = [*project["dependencies"], *extras["otel"], *extras["test-gpu"]]
    declared = {re.split(r"[<>=!~; \[]", wanted)[0].lower() for wanted in wanted_ones}
    providers = packages_distributions()
    missing = {
        f"{module} imports {library}"
        for module, path in MODULES.items()
        for library in libraries(path)
        - set(sys.stdlib_module_names)
        - {"pydantic_core", "typing_extensions"}  # parts of pydantic
        if not declared & {name.lower().replace("_", "-") for name in providers.get(library, [library])}
    }
    assert not missing


def test_our_packages_are_imported_by_one_name_only() -> None:
    """From a checkout's root `import server` works as well, and would load a module twice."""
    line = re.compile(r"^ *(?:from|import) (?:server|model)\b[. ].*", re.MULTILINE)
    places = python_files("model", "server", "src", "tests", "benchmarks", "deploy", "clients")
    wrong = {
        f"{path.relative_to(ROOT)}: {found[0].strip()}"
        for path in places
        if (found := line.search(path.read_text(encoding="utf-8")))
    }
    assert not wrong


def test_the_client_imports_nothing_of_ours() -> None:
    ours = {"lightwell", "model", "server", "tests", "benchmarks", "deploy"}
    knowing = {
        str(path.relative_to(ROOT)): found
        for path in python_files("clients")
        if (found := {name.split(".")[0] for name in names_of(path)} & ours)
    }
    assert not knowing


def test_only_tests_of_benchmarks_import_benchmarks() -> None:
    """Check that code that tests share is in tests/support, not in a benchmark."""
    importing = [
        str(path.relative_to(ROOT))
        for path in python_files("tests")
        if path.relative_to(ROOT).parts[1] != "benchmarks"
        and re.search(r"^\s*(?:from|import) benchmarks\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not importing


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    missing = [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert not missing, "without __init__.py, tests/server passes itself off as server"


def test_files_and_functions_are_short_and_files_open_with_what_they_do() -> None:
    long, silent = [], []
    for path in python_files("model", "server", "clients", "tests", "benchmarks", "deploy"):
        name = path.relative_to(ROOT)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            long.append(f"{name}: {lines} lines")
        tree = parse(path)
        if tree.body and not ast.get_docstring(tree) and name.parts[0] != "deploy":
            silent.append(str(name))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert not long
    assert not silent
