"""The public interface: both clients alike, nothing hidden, nothing heavy, and numpy only where an array is wanted."""

import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import lightwell_client
from lightwell.server.dialects.inspect.contributions import ContributionsRequest
from lightwell.server.dialects.inspect.correlations import CorrelationsRequest
from lightwell.server.dialects.inspect.explain import ExplainRequest
from lightwell.server.dialects.inspect.heads import HeadsRequest
from lightwell.server.dialects.inspect.lens import LensRequest
from lightwell.server.dialects.inspect.next_token import NextRequest
from lightwell.server.dialects.inspect.rollout import RolloutRequest
from lightwell.server.dialects.inspect.trajectory import TrajectoryRequest
from lightwell.server.dialects.inspect.weight_slices import WeightsQuery
from lightwell.server.dialects.inspect.weights import CircuitsRequest, GeometryQuery
from lightwell.server.schemas.embeddings import EmbeddingRequest
from lightwell.server.schemas.generation import ChatCompletionRequest, CompletionRequest
from lightwell.server.schemas.inspect.attention import AttentionRequest
from lightwell.server.schemas.inspect.trace import TraceRequest
from lightwell.server.schemas.judgements.classifying import ClassifyRequest
from lightwell.server.schemas.judgements.decisions import DecisionsRequest
from lightwell.server.schemas.judgements.reranking import RerankRequest
from lightwell.server.schemas.judgements.scoring import ScoreRequest
from lightwell.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from lightwell_client import AsyncClient, AsyncStream, Client, Stream

PYTHON_CLIENT = Path(__file__).parents[2] / "clients" / "python"
ASYNC_NAMES = {
    "_async_client": "_client",
    "_async_connection": "_connection",
    "AsyncClient": "Client",
    "AsyncStream": "Stream",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
ASYNC_NAMES |= {"__aiter__": "__iter__", "__anext__": "__next__"}


def surface(kind: type) -> dict[str, str]:
    """Return each method of `kind` with its signature, written as its synchronous twin would be."""
    classes = [each for each in reversed(kind.__mro__) if each.__module__.startswith("lightwell_client")]
    methods = {
        name: value for each in classes for name, value in vars(each).items() if callable(value) and is_public(name)
    }
    text = {name: str(inspect.signature(value)) for name, value in methods.items()}
    for theirs, ours in ASYNC_NAMES.items():
        text = {name.replace(theirs, ours): signature.replace(theirs, ours) for name, signature in text.items()}
    return {
        name: s.replace("AsyncIterator", "Iterator").replace("AsyncGenerator", "Generator") for name, s in text.items()
    }


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ASYNC_NAMES or name in ASYNC_NAMES.values() or name == "__init__"


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert surface(AsyncClient) == surface(Client)
    assert surface(AsyncStream).keys() == surface(Stream).keys()


def test_the_synchronous_client_is_written_from_the_asynchronous_one() -> None:
    script = runpy.run_path(str(PYTHON_CLIENT / "write_client.py"))
    package = PYTHON_CLIENT / "lightwell_client"
    for name, text in script["written"]().items():
        assert text == (package / name).read_text(encoding="utf-8"), "run write_client.py"


METHODS = [
    pytest.param(method, id=f"{kind.__name__}.{name}")
    for kind in (Client, AsyncClient)
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and not name.startswith("_")
]


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_is_shown_with_its_type_its_default_and_a_line(method: Callable[..., Any]) -> None:
    """Guard against signatures of bundled options: Shift-Tab showed `**options: *AttentionOptions`."""
    document = (inspect.getdoc(method) or "").splitlines()
    told = [line.split(":")[0].strip() for line in document if re.match(r"    [a-z_]+: ", line)]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    assert told == [parameter.name for parameter in parameters]
    for parameter in parameters:
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert parameter.annotation not in (inspect.Parameter.empty, Any), parameter.name
        assert parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
    assert max(map(len, document)) <= 120
    assert method.__doc__ == getattr(Client, method.__name__).__doc__


BODIES: dict[str, type[BaseModel]] = {
    "generate": CompletionRequest, "chat": ChatCompletionRequest, "embed": EmbeddingRequest,
    "attention": AttentionRequest, "trace": TraceRequest, "next": NextRequest,
    "lens": LensRequest, "explain": ExplainRequest, "contributions": ContributionsRequest,
    "trajectory": TrajectoryRequest, "heads": HeadsRequest, "rollout": RolloutRequest,
    "geometry": GeometryQuery, "circuits": CircuitsRequest, "tokenize": TokenizeRequest,
    "decisions": DecisionsRequest, "rerank": RerankRequest, "score": ScoreRequest, "classify": ClassifyRequest,
    "weights": WeightsQuery, "correlations": CorrelationsRequest, "detokenize": DetokenizeRequest,
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_the_defaults_that_are_shown_are_the_servers(name: str) -> None:
    ours = {"timeout", "extra_body", "extra_headers", "include_usage"}
    if name in ("geometry", "weights"):
        ours |= {"model"}  # a part of the path
    if name == "tokenize":
        ours |= {"add_generation_prompt"}  # of messages, another body
    for parameter in inspect.signature(getattr(Client, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in ours:
            default = BODIES[name].model_fields[parameter.name].get_default(call_default_factory=True)
            assert parameter.default == (tuple(default) if isinstance(default, list) else default), parameter.name


def test_every_public_method_says_what_it_does() -> None:
    for kind in (Client, AsyncClient, Stream, AsyncStream):
        for name, method in vars(kind).items():
            assert name.startswith("_") or not callable(method) or inspect.getdoc(method), f"{kind.__name__}.{name}"


def test_all_is_sorted_complete_and_true() -> None:
    public = {name for name, value in vars(lightwell_client).items() if is_ours(value)}
    assert set(lightwell_client.__all__) == public | {"__version__"}
    assert lightwell_client.__all__ == sorted(lightwell_client.__all__)


def is_ours(value: Any) -> bool:
    return isinstance(value, type) and value.__module__.startswith("lightwell_client")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_client_loads_no_arrays_and_no_server() -> None:
    heavy = {"numpy", "torch", "matplotlib", "safetensors", "lightwell", "fastapi"}
    loaded = run("import lightwell_client, sys; print(*{name.partition('.')[0] for name in sys.modules})")
    assert not heavy & set(loaded.split())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("client.attention('x')", "attention() needs numpy: pip install 'lightwell-client[numpy]'"),
        ("parse_embeddings(body, 1).matrix", "a matrix of embeddings needs numpy"),
    ],
)
def test_without_numpy_arrays_name_the_extra_and_all_else_works(code: str, message: str) -> None:
    output = run(
        "import sys; sys.modules['numpy'] = None\n"
        "from lightwell_client import Client, MissingDependency\n"
        "from lightwell_client._embeddings import parse_embeddings\n"
        "client = Client('http://127.0.0.1:9')\n"
        "body = {'data': [{'index': 0, 'embedding': [1.5, 2]}]}\n"
        "assert parse_embeddings(body, 1).vectors == [(1.5, 2.0)]\n"
        "from lightwell_client._calls import generate\n"
        "change = {'point': 'hook_embed', 'op': 'add', 'value': [1.5, 2]}\n"
        "assert generate(None, 'x', {'interventions': [change]}).body['interventions'] == [change]\n"
        f"try:\n    {code}\nexcept MissingDependency as error:\n    print(error)\n"
    )
    assert output.startswith(message)
