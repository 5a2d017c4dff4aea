"""Nothing that comes from outside is unpickled or run: read from the source, so that it stays so."""

import ast

import pytest

from tests.test_structure import MODULES, imported_names, parse

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "pandas.read_pickle"}


def calls(module: str) -> list[ast.Call]:
    return [node for node in ast.walk(parse(MODULES[module])) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("module", MODULES)
def test_nothing_unpickles(module: str) -> None:
    assert not {name.split(".")[0] for name in imported_names(parse(MODULES[module]))} & FORBIDDEN_IMPORTS


@pytest.mark.parametrize("module", MODULES)
def test_torch_and_numpy_load_data_only(module: str) -> None:
    for call in calls(module):
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if ast.unparse(call.func) == "torch.load":
            assert keywords.get("weights_only") == "True", f"{module}:{call.lineno}"
        assert keywords.get("allow_pickle", "False") == "False", f"{module}:{call.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_no_text_is_run_as_code(module: str) -> None:
    for call in calls(module):
        assert ast.unparse(call.func) not in FORBIDDEN_CALLS, f"{module}:{call.lineno}"
        assert all(keyword.arg != "shell" for keyword in call.keywords), f"{module}:{call.lineno}"
