"""`LLM` gives the bits of a server for every method of the client, with one model of each kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.library.llm import LLM
from lightwell_client import Client
from tests.server.library.calls import ASKED, CALLS, outcome, same
from tests.support.families import ARCHETYPES
from tests.support.processes import serve
from tests.support.shared import once, shared_server
from tests.tiny import make_variant
from tests.tiny.adapters import make_adapter

pytestmark = pytest.mark.nightly

RERANKER = Path(__file__).parents[2] / "e2e" / "reranker"
ANSWERED_BY = {
    **dict.fromkeys({*CALLS, *ASKED} - {"load_lora", "unload_lora"}, "llama-gqa"),
    **dict.fromkeys(("classify", "rerank", "score"), "reranker"),
}
"""A model that answers each method; others may refuse it."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def folder_of(name: str) -> Path:
    if name == "reranker":
        return RERANKER
    return once(("library", name), lambda folder: make_variant(name, folder))


@pytest.fixture(scope="module", params=[*ARCHETYPES, "reranker"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[str, LLM, Client]]:
    folder = str(folder_of(request.param))
    server = shared_server(folder, "--dtype", "float32", "--threads", "1", "--chat-template", TEMPLATE)
    with (
        LLM(folder, dtype="float32", threads=1, chat_template=TEMPLATE) as llm,
        Client(server.url, max_retries=0) as client,
    ):
        yield request.param, llm, client


@pytest.mark.parametrize("method", [*CALLS, *ASKED])
def test_a_method_has_the_bits_of_the_server(both: tuple[str, LLM, Client], method: str) -> None:
    name, llm, client = both
    ours, theirs = outcome(llm, method), outcome(client, method)
    assert same(ours, theirs), (ours, theirs)
    assert ANSWERED_BY.get(method) != name or not isinstance(ours, tuple), ours


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # in peft
def test_adapters_are_loaded_and_unloaded_as_by_the_server(tmp_path: Path) -> None:
    folder = make_variant("llama-gqa", tmp_path / "model")
    make_adapter(folder, tmp_path / "tuned", 1)
    settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "lora_root": str(tmp_path), "max_lora_rank": 4}
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with serve([str(folder), *flags]) as server, Client(server.url) as client, LLM(str(folder), **settings) as llm:
        found = []
        for asked in (llm, client):
            asked.load_lora("tuned", str(tmp_path / "tuned"))
            names = [model.id for model in asked.models()]
            vectors = [asked.embed([[5, 6, 7]], model=name) for name in names]
            asked.unload_lora("tuned")
            found.append((names, vectors, [model.id for model in asked.models()]))
        assert same(*found)
        (names, (plain, tuned), left), _ = found
        assert (len(names), left) == (2, names[:1])
        assert plain.data[0].data != tuned.data[0].data
