"""The structure of the repository, read from the source: the direction of imports, the allowed imports of each part,
the length of files.

It does not depend on the code's behaviour. A new folder, and an arrow to another, must be named here.
"""

import ast

import pytest

from tests.source_tree import MODULES, PLACES, ROOT, imported_names, imports, parse

# Each room of server/ and model/ (a folder or a file in them) and the rooms that it may import, from the top down.
MAY_IMPORT = {
    "server.cli": "model.analysis model.checkpoint model.tokenization server.batches server.config server.library "
                  "server.lifecycle server.observability server.terminal",
    "server.terminal": "model.checkpoint model.loading model.network server.config",
    "server.library": "model.checkpoint model.tokenization server.batches server.config server.http server.lifecycle",
    "server.lifecycle": "model.analysis model.checkpoint model.network model.tokenization server.batches "
                        "server.config server.dialects server.dispatch server.engine server.generation server.http "
                        "server.ipc server.observability server.worker",
    "server.dialects": "model.analysis model.checkpoint model.config model.hooks model.kernels model.network "
                       "model.sampling model.tokenization server.batches server.config server.dispatch "
                       "server.engine server.generation server.http server.observability server.schemas",
    "server.generation": "model.checkpoint model.config model.hooks model.network model.sampling model.tokenization "
                         "server.batches server.config server.dispatch server.engine server.http "
                         "server.observability server.schemas",
    "server.worker": "model.kernels server.config server.engine server.ipc server.observability",
    "server.dispatch": "server.config server.engine server.http server.ipc server.observability",
    "server.schemas": "server.batches server.config server.engine server.http",
    "server.batches": "server.config server.http",
    "server.http": "server.engine server.observability",
    "server.observability": "server.config server.engine",
    "server.config": "model.analysis model.checkpoint model.config model.kernels model.sharding server.engine",
    "server.ipc": "server.engine",
    "server.engine": "model.analysis model.batch model.checkpoint model.config model.hooks model.kernels "
                     "model.kv_cache model.layers model.loading model.network model.ranks model.sampling "
                     "model.sharding",
    "model.ranks": "model.analysis model.batch model.checkpoint model.config model.hooks model.kernels model.kv_cache "
                   "model.layers model.loading model.network model.sampling model.sharding",
    "model.loading": "model.checkpoint model.config model.kernels model.layers model.network model.quantized "
                     "model.sharding",
    "model.analysis": "model.checkpoint model.config model.hooks model.kernels model.layers model.network",
    "model.sharding": "model.batch model.checkpoint model.config model.hooks model.layers model.network",
    "model.network": "model.batch model.checkpoint model.config model.hooks model.kernels model.kv_cache "
                     "model.layers model.sampling",
    "model.hooks": "model.batch model.config model.kernels model.kv_cache model.layers",
    "model.sampling": "model.kernels model.layers model.tokenization",
    "model.layers": "model.batch model.config model.kernels model.kv_cache model.quantized",
    "model.batch": "model.kernels",
    "model.kv_cache": "model.checkpoint model.config",
    "model.tokenization": "model.checkpoint",
    "model.checkpoint": "model.config model.quantized",
    "model.kernels": "model.config model.quantized",
    "model.quantized": "",
    "model.config": "",
}  # fmt: skip
MOST_ENTRIES = {"server": 16, "model": 16}
"""Largest number of entries of a folder, without __init__.py and without files for a single family of models."""
MOST_ENTRIES_ELSEWHERE = 20


def room_of(module: str, place: str) -> str | None:
    """Return the entry of a folder, by its dotted name, that holds a module, or None if the module is not in the
    folder.
    """
    inner = module.removeprefix(f"{place}.")
    return None if inner == module else f"{place}.{inner.split('.')[0]}"


def imported_rooms(place: str) -> dict[str, set[str]]:
    """Return the entries of a folder, each with the other entries that it imports."""
    rooms: dict[str, set[str]] = {room: set() for module in MODULES if (room := room_of(module, place))}
    for module, names in imports().items():
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
    for module, names in imports().items():
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
    assert circle(imports()) is None


def test_the_routes_of_one_api_import_none_of_another() -> None:
    dialects = {
        f"server.dialects.{name}" for name in ("anthropic", "huggingface", "ollama", "openai", "openai_responses")
    }
    rooms = imported_rooms("server.dialects")
    assert {dialect: rooms[dialect] & dialects for dialect in dialects if rooms[dialect] & dialects} == {}


def test_no_imports_go_in_circles_within_the_client() -> None:
    files = {f"lightwell_client.{path.stem}": path for path in (ROOT / "clients/python/lightwell_client").glob("*.py")}
    names = {module: {*imported_names(parse(path))} for module, path in files.items()}
    assert circle({module: found & files.keys() - {module} for module, found in names.items()}) is None


def test_a_folder_holds_few_entries_and_says_what_it_is() -> None:
    wrong = []
    for place in PLACES:
        folder = ROOT / place.replace(".", "/")
        entries = [p for p in folder.iterdir() if p.name[0] != "." and p.name not in ("__init__.py", "__pycache__")]
        if folder.name != "families" and len(entries) > MOST_ENTRIES.get(place, MOST_ENTRIES_ELSEWHERE):
            wrong.append(f"{place} has {len(entries)} entries")
        if not ast.get_docstring(parse(folder / "__init__.py")):
            wrong.append(f"{place}/__init__.py does not say what the folder is for")
    assert not wrong
