"""Texts that follow a grammar, in the engine: their content, their independence of other requests, and their end.

The tests check the texts with `re` and `jsonschema`, not with the library that the engine uses.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import torch
from msgspec.structs import replace

from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.constraint import grammar_text
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest
from tests import tiny
from tests.server.engine.driving import Answer, build, generate, load, request, run

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["circle", "square", "a form with a longer name"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
JSON = grammar_text("json", SCHEMA)
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
LETTERS = "[a-z]{40,60}"
REGEX, LONG = grammar_text("regex", DATE), grammar_text("regex", LETTERS)
EOS = 1
"""The end-of-text id of the tiny tokenizers."""
ROOM = 150
"""Number of tokens that is enough for every text of these grammars: the tokenizer has tokens of single bytes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant("llama-gqa", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def prompt(length: int | None = None) -> list[int]:
    length = random.randrange(3, 40) if length is None else length
    return [0, *(random.randrange(3, tiny.VOCAB_SIZE) for _ in range(length))]


def text_of(answer: Answer, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(answer.tokens)


def answered(model: Transformer, folder: Path, requests: Sequence[EngineRequest], **config: int) -> dict[int, Answer]:
    return run(build(model, folder=folder, **config), [replace(each) for each in requests])


def drained(engine: Engine) -> list[RequestOutput]:
    """Run the engine until it has no work, and return its outputs."""
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step().outputs
    return outputs


def each_alone(model: Transformer, folder: Path, requests: Sequence[EngineRequest]) -> dict[int, Answer]:
    return {each.uid: answered(model, folder, [each])[each.uid] for each in requests}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_texts_keep_to_their_grammars_and_end_by_themselves_without_tokens_that_the_tokenizer_lacks(
    tmp_path: Path, tokenizer: Tokenizer, temperature: float
) -> None:
    folder = tiny.make_variant("llama-gqa", tmp_path, vocab_size=512)  # padded, as most published networks are
    options = {"temperature": temperature, "logit_bias": dict.fromkeys(range(tiny.VOCAB_SIZE, 512), 100.0)}
    tasks = [
        generate(ROOM, seed=seed, eos_token_ids=(EOS,), grammar=(JSON, REGEX, LONG)[i % 3], **options)
        for i, seed in enumerate(random.sample(range(10**6), 9))
    ]
    answers = answered(load(folder), folder, [request(i, prompt(), task) for i, task in enumerate(tasks)])
    for i, answer in answers.items():
        text = text_of(answer, tokenizer)
        assert answer.finish_reason == "stop", text
        if i % 3 == 0:
            jsonschema.validate(json.loads(text), SCHEMA)
        else:
            assert re.fullmatch((DATE, LETTERS)[i % 3 - 1], text)


def test_nothing_beside_a_request_changes_its_bits(model: Transformer, folder: Path) -> None:
    pairs = ((0, 1), (1, 2))
    tasks = [
        generate(ROOM, grammar=JSON),
        generate(ROOM, grammar=JSON, temperature=1.2, seed=5),
        generate(ROOM, grammar=LONG, temperature=0.8, seed=6, repetition_penalty=1.3, presence_penalty=0.4),
        generate(ROOM, grammar=REGEX, temperature=1.0, seed=7, logprobs=3),
        generate(ROOM, grammar=JSON, temperature=1.0, seed=8, attention=AttentionCapture(pairs=pairs)),
        generate(20, logprobs=4, ignore_eos=True),
        generate(20, temperature=0.9, seed=9, logprobs=2, ignore_eos=True),
        generate(20, attention=AttentionCapture(pairs=pairs), ignore_eos=True),
    ]
    crowd = [request(i, prompt(36), task) for i, task in enumerate(tasks)]
    expected = each_alone(model, folder, crowd)
    order = random.sample(crowd, len(crowd))
    arrivals = sorted(random.randrange(12) for _ in order)
    assert run(build(model, folder=folder), order, arrivals=arrivals) == expected
    engine = build(model, folder=folder, num_blocks=25, max_num_seqs=8, max_num_batched_tokens=9)
    assert run(engine, order, arrivals=arrivals) == expected
    copies = [replace(each, uid=each.uid + 8 * i) for i in range(2) for each in order]  # more than fit into memory
    found = run(engine, copies)
    for i in range(2):
        assert {uid: found[uid + 8 * i] for uid in expected} == expected
    assert engine.stats().num_preemptions_total > 0


def test_forced_tokens_take_no_step_and_are_the_same_as_step_by_step(model: Transformer, folder: Path) -> None:
    quick = generate(ROOM, grammar=JSON, temperature=1.0, seed=3)
    slow = replace(quick, sampling=replace(quick.sampling, logprobs=0))
    engine, start = build(model, folder=folder), prompt()
    found = run(engine, [request(0, start, quick)])[0]
    stats = engine.stats()
    assert stats.forced_tokens_total > 20
    assert stats.generation_tokens_total == len(found.tokens)
    assert stats.engine_steps_total == len(found.tokens) - stats.forced_tokens_total, "a step that chose nothing"
    expected = run(engine, [request(1, start, slow)])[1]
    assert found.tokens == expected.tokens
    assert engine.stats().forced_tokens_total == stats.forced_tokens_total


@pytest.mark.parametrize("grammar", [JSON, grammar_text("choice", ["a form with one text"]), REGEX])
def test_what_is_forced_at_the_beginning_ends_as_step_by_step(
    model: Transformer, folder: Path, tokenizer: Tokenizer, grammar: str
) -> None:
    beginning = tokenizer.encode('{"name": "a', add_special_tokens=False).ids
    start, engine = prompt(), build(model, folder=folder)
    for max_tokens in [1, 2, random.randrange(3, 12), ROOM]:
        for stops in [(), (random.choice(beginning),)]:
            quick = generate(max_tokens, grammar=grammar, temperature=1.0, seed=4, stop_token_ids=stops)
            slow = replace(quick, sampling=replace(quick.sampling, logprobs=0))
            found = run(engine, [request(0, start, quick), request(1, start, slow)])
            assert found[0].tokens == found[1].tokens
            assert found[0].finish_reason == found[1].finish_reason
            assert len(found[0].tokens) <= max_tokens


def test_what_is_forced_at_the_beginning_is_sent_before_the_prompt_is_read(model: Transformer, folder: Path) -> None:
    engine = build(model, folder=folder, max_num_batched_tokens=9, max_num_seqs=4, enable_prefix_caching=False)
    start, task = prompt(30), generate(ROOM, grammar=JSON)
    expected = run(engine, [request(0, start, task)])[0].tokens
    early: list[RequestOutput] = []
    engine.send_early(lambda step: early.extend(step.outputs))
    engine.add_request(request(1, start, task))
    assert not engine.step().outputs, "one step does not read the whole prompt"
    sent = [output.token_id for output in early]
    assert sent == expected[: len(sent)]
    assert len(sent) > 1
    late = [output.token_id for output in drained(engine)]
    assert [*sent, *late] == expected


def test_forced_tokens_are_no_cached_tokens_of_the_prompt(model: Transformer, folder: Path) -> None:
    start, engine = prompt(32), build(model, folder=folder)
    task = generate(40, grammar=JSON)
    run(engine, [request(0, start, task)])
    engine.add_request(request(1, start, task))
    cached = max(output.num_cached_tokens for output in drained(engine))
    assert 0 < cached <= len(start)


def test_a_text_that_is_cut_off_is_the_beginning_of_one_that_the_grammar_accepts(
    model: Transformer, folder: Path, tokenizer: Tokenizer
) -> None:
    start = prompt()
    whole = answered(model, folder, [request(0, start, generate(ROOM, grammar=JSON, temperature=1.0))])[0].tokens
    tasks = [generate(n, grammar=JSON, temperature=1.0) for n in range(1, len(whole) + 1)]
    answers = answered(model, folder, [request(n, start, task) for n, task in enumerate(tasks, 1)])
    for n, answer in answers.items():
        assert answer.tokens == whole[:n]
        assert answer.finish_reason == ("stop" if n == len(whole) else "length")


def test_no_other_parameter_makes_a_text_invalid(model: Transformer, folder: Path, tokenizer: Tokenizer) -> None:
    digits = {i: -torch.inf for i in range(tiny.VOCAB_SIZE) if tokenizer.token_strings([i])[0].isdigit()}
    tasks = [
        generate(ROOM, grammar=REGEX, min_tokens=100, ignore_eos=True, eos_token_ids=(EOS,)),
        generate(ROOM, grammar=REGEX, min_tokens=100, temperature=1.0, eos_token_ids=(EOS,)),
        generate(ROOM, grammar=REGEX, logit_bias=digits),
        generate(ROOM, grammar=REGEX, logit_bias=digits, temperature=1.0, top_k=1),
        generate(ROOM, grammar=REGEX, temperature=1.0, top_p=0.01, min_p=1.0, frequency_penalty=2.0),
        generate(ROOM, grammar=REGEX, temperature=100.0, repetition_penalty=100.0),
    ]
    for answer in answered(model, folder, [request(i, prompt(), task) for i, task in enumerate(tasks)]).values():
        assert answer.finish_reason == "stop"
        assert re.fullmatch(DATE, text_of(answer, tokenizer))


def test_a_text_that_may_end_ends_with_the_models_end_of_text(
    model: Transformer, folder: Path, tokenizer: Tokenizer
) -> None:
    grammar = grammar_text("regex", "[a-c]*")
    likely = {EOS: 100.0}
    task = generate(50, grammar=grammar, min_tokens=5, logit_bias=likely, eos_token_ids=(EOS,))
    answer = answered(model, folder, [request(0, prompt(), task)])[0]
    assert answer.tokens[-1] == EOS
    assert (len(answer.tokens), answer.finish_reason) == (6, "stop")
    assert re.fullmatch("[a-c]+", text_of(answer, tokenizer))


def test_a_grammar_that_cannot_be_compiled_ends_its_own_request_alone_and_equal_ones_are_compiled_once(
    model: Transformer, folder: Path
) -> None:
    broken = generate(20, grammar="start: (((")
    engine = build(model, folder=folder)
    answers = run(engine, [request(0, prompt(), broken), request(1, prompt(), generate(5, ignore_eos=True))])
    assert answers[0].finish_reason == "grammar"
    assert answers[0].error
    assert answers[1].finish_reason == "length"
    before = engine.stats()
    alike = [request(i, prompt(), generate(ROOM, grammar=REGEX, seed=i, temperature=1.0)) for i in range(2, 7)]
    assert {answer.finish_reason for answer in run(engine, alike).values()} == {"stop"}
    stats = engine.stats()
    assert stats.grammars_compiled_total == before.grammars_compiled_total + 1
    assert stats.grammars_cached_total == before.grammars_cached_total + 4
    assert stats.grammar_compile_seconds_total > before.grammar_compile_seconds_total


def test_a_grammar_needs_the_models_tokens(model: Transformer, tmp_path: Path) -> None:
    answers = run(build(model, folder=tmp_path), [request(0, prompt(), generate(20, grammar=REGEX))])
    assert answers[0].finish_reason == "grammar"
    assert "tokenizer" in (answers[0].error or "")


def test_requests_are_aborted_while_their_grammars_are_compiled_and_later(model: Transformer, folder: Path) -> None:
    engine = build(model, folder=folder)
    requests = [request(i, prompt(), generate(ROOM, grammar=JSON, temperature=1.0, seed=i)) for i in range(4)]
    for each in requests:
        engine.add_request(each)
    engine.abort(0)
    ends = {output.uid: output.finish_reason for output in engine.step().outputs}
    assert ends == {0: "abort"}
    seen: Counter[int] = Counter()
    deadline = time.monotonic() + 60
    while ends.keys() < {0, 1, 2, 3}:
        assert time.monotonic() < deadline
        for output in engine.step().outputs if engine.has_work else ():
            seen[output.uid] += output.token_id is not None
            if output.finish_reason:
                ends[output.uid] = output.finish_reason
            elif output.uid == 1 and seen[1] == 5:
                engine.abort(1)
    assert ends == {0: "abort", 1: "abort", 2: "stop", 3: "stop"}
    engine.check_integrity()
