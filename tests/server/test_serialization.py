"""No data from outside is unpickled or run. The tests check the source."""

import ast

from tests.source_tree import MODULES, imported_names, parse

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "pandas.read_pickle"}


def called(call: ast.Call) -> str:
    names, part = [], call.func
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(names)]) if isinstance(part, ast.Name) else ""


def test_nothing_unpickles_or_runs_a_text_and_torch_and_numpy_load_data_only() -> None:
    for module, path in MODULES.items():
        tree = parse(path)
        assert not {name.split(".")[0] for name in imported_names(tree)} & FORBIDDEN_IMPORTS, module
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            place = f"{module}:{call.lineno}"
            assert called(call) not in FORBIDDEN_CALLS, place
            assert "shell" not in given, place
            if called(call) == "torch.load":
                assert ast.unparse(given["weights_only"]) == "True", place
            assert "allow_pickle" not in given or ast.unparse(given["allow_pickle"]) == "False", place
