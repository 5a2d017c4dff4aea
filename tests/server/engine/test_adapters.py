"""Requests with LoRA adapters in one engine: the same bits in any batch, and adapters loaded and removed meanwhile."""

import threading

import pytest
from msgspec.structs import replace

from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.config import AdapterFolder
from lightwell.server.engine.messages.request import EngineRequest
from tests import tiny
from tests.server.engine.driving import build, generate, load, request, run
from tests.tiny.adapters import make_adapter

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
PROMPT = list(range(20, 50))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return load(tiny.make_variant("llama-gqa", tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterFolder, ...]:
    path = tmp_path_factory.mktemp("adapters")
    folder = tiny.make_variant("llama-gqa", path / "model")
    for i in (1, 2):
        make_adapter(folder, path / str(i), i)
    return tuple(AdapterFolder(i, path / str(i)) for i in (1, 2))


def asked(uid: int, adapter: int, *, length: int = 30, max_tokens: int = 8) -> EngineRequest:
    return replace(request(uid, PROMPT[:length], generate(max_tokens, logprobs=2)), adapter=adapter)


def test_answers_are_the_same_alone_together_cached_and_after_preemption(
    model: Transformer, folders: tuple[AdapterFolder, ...]
) -> None:
    requests = [asked(i, i % 3, length=30 - i // 3, max_tokens=24) for i in range(9)]
    expected = {each.uid: run(build(model, adapters=folders), [each])[each.uid] for each in requests}
    together = build(model, num_blocks=17, adapters=folders)
    assert run(together, requests, arrivals=[i // 2 for i in range(9)]) == expected
    assert together.stats().num_preemptions_total > 0
    roomy = build(model, adapters=folders, max_num_seqs=2)
    for _ in range(2):  # the second time prefixes are cached
        assert run(roomy, requests) == expected
    assert roomy.stats().prefix_cache_hits_total > 0
    assert len({tuple(expected[i].tokens) for i in range(3)}) == 3


def test_requests_that_have_begun_keep_an_adapter_that_is_dropped(
    model: Transformer, folders: tuple[AdapterFolder, ...]
) -> None:
    expected = run(build(model, adapters=folders), [asked(0, 1)])[0].tokens
    engine = build(model, adapters=folders)
    engine.add_request(asked(0, 1))
    tokens = [output.token_id for output in engine.step().outputs]
    engine.adapters.drop(1)
    while engine.has_work:
        tokens += [output.token_id for output in engine.step().outputs]
    assert tokens == expected
    with pytest.raises(ValueError, match="there is no adapter 1"):
        engine.add_request(asked(1, 1))


def test_a_panic_while_an_adapter_loads_fails_that_adapter(
    model: Transformer, folders: tuple[AdapterFolder, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, answers, answered = build(model), list[str | None](), threading.Event()

    def panic(*unused: object, **options: object) -> None:
        raise BaseException("a library in Rust panicked")

    def done(error: str | None) -> None:
        answers.append(error)
        answered.set()

    monkeypatch.setattr("lightwell.server.engine.adapters.load_adapter", panic)
    engine.adapters.begin(7, folders[0].folder, done)
    assert answered.wait(60)
    assert answers == [f"the adapter in {folders[0].folder} could not be loaded (BaseException)"]
