"""No data from outside is unpickled or run, and secrets are compared in constant time. The tests check the source."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.source_tree import MODULES, imported_names, parse

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "pandas.read_pickle"}

LOADING = ("weights_only", "allow_pickle")
"""Arguments that decide whether a file of numbers may hold code."""


@cache
def tree(module: str) -> ast.Module:
    return parse(MODULES[module])


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of the product, and the place of its source."""
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Call):
                yield f"{module}:{node.lineno}", node


def called(call: ast.Call) -> str:
    """Return the dotted name of a called function, or "" for an expression of another form."""
    names, part = [], call.func
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(names)]) if isinstance(part, ast.Name) else ""


def test_nothing_unpickles() -> None:
    imported = {module: {name.split(".")[0] for name in imported_names(tree(module))} for module in MODULES}
    assert {module: names & FORBIDDEN_IMPORTS for module, names in imported.items() if names & FORBIDDEN_IMPORTS} == {}


def test_torch_and_numpy_load_data_only() -> None:
    for place, call in calls():
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg in LOADING}
        if called(call) == "torch.load":
            assert keywords.get("weights_only") == "True", place
        assert keywords.get("allow_pickle", "False") == "False", place


def test_no_text_is_run_as_code() -> None:
    for place, call in calls():
        assert called(call) not in FORBIDDEN_CALLS, place
        assert all(keyword.arg != "shell" for keyword in call.keywords), place


def test_a_given_key_is_compared_in_constant_time_only() -> None:
    """Check for `==` and `in`, which stop at the first byte that differs."""
    keyring = next(
        node for node in ast.walk(parse(MODULES["server.config.auth.keys"])) if getattr(node, "name", "") == "Keyring"
    )
    find = next(node for node in ast.walk(keyring) if getattr(node, "name", "") == "find")
    used = [ast.unparse(node.func) for node in ast.walk(find) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in used
    assert not [ast.unparse(node) for node in ast.walk(find) if isinstance(node, ast.Compare)]
