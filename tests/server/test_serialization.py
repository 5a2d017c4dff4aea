"""Nothing that comes from outside is unpickled or run, and no secret is compared in a time that reveals it. The
tests read the source, so that it stays so.
"""

import ast

import pytest

from tests.source_tree import MODULES, imported_names, parse

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


def test_a_given_key_is_compared_in_constant_time_only() -> None:
    """Check for `==` and `in`, which stop at the first byte that differs."""
    keyring = next(
        node for node in ast.walk(parse(MODULES["server.auth.keys"])) if getattr(node, "name", "") == "Keyring"
    )
    find = next(node for node in ast.walk(keyring) if getattr(node, "name", "") == "find")
    used = [ast.unparse(node.func) for node in ast.walk(find) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in used
    assert not [ast.unparse(node) for node in ast.walk(find) if isinstance(node, ast.Compare)]
