"""No data from outside is unpickled or run. The tests check the source."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.source_tree import MODULES, imported_names, parse

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "pandas.read_pickle"}


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


def test_no_text_is_run_as_code_and_torch_and_numpy_load_data_only() -> None:
    for place, call in calls():
        name, keywords = called(call), {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert name not in FORBIDDEN_CALLS, place
        assert "shell" not in keywords, place
        assert name != "torch.load" or keywords.get("weights_only") == "True", place
        assert keywords.get("allow_pickle", "False") == "False", place
