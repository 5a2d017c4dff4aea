"""The numbers that users receive, end to end: random prompts over HTTP against transformers in this process.

Each family has two servers with small steps, so prompts are chunked. One server has room; the other's cache holds one
context, so requests are preempted. Both get the same requests, one at a time and eight at once; every answer must have
the same bits. Other tests may use the server with room at the same time, but not with these prompts.
"""

import random
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.numpy import load

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.e2e.checkpoints import BLOCK_SIZE, folder_of, server_arguments
from tests.support.shared import shared_server
from tests.tiny import CONTEXT, VOCAB_SIZE

FAMILIES = ("llama-gqa", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("llama-llama3", "gpt2")))
NUM_LAYERS = 2
NUM_PROMPTS = 8
NUM_GENERATED = 40
NUM_TOP = 20
POOLINGS = ("none", "mean", "last")
LAYERS = (*range(NUM_LAYERS + 1), None)
"""Layers of embeddings; None is after the final norm."""
PATTERN_TOLERANCE, TOLERANCE = 1e-5, 1e-4

Floats = npt.NDArray[np.float32]
Ids = list[int]


@dataclass(frozen=True)
class Question:
    """One request: the index of its prompt, its kind, and its body."""

    prompt: int
    name: tuple[Any, ...]
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The answer: tensors or choices, without ids and times, and the number of cached prompt tokens."""

    tensors: dict[str, Floats]
    choice: dict[str, Any]
    num_cached: int

    @property
    def bits(self) -> Any:
        """Return a value that is equal for two answers if and only if all their bits are equal."""
        return {name: value.tobytes() for name, value in self.tensors.items()}, self.choice


class Reference:
    """transformers on one sequence of token ids: everything that is compared."""

    def __init__(self, network: Any, token_ids: Ids) -> None:
        final_norm = network.get_submodule("transformer.ln_f" if hasattr(network, "transformer") else "model.norm")
        before: list[torch.Tensor] = []  # transformers returns the last layer after the final norm only
        hook = final_norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        with torch.no_grad():
            seen = network(torch.tensor([token_ids]), output_attentions=True, output_hidden_states=True)
        hook.remove()
        self.patterns: Floats = torch.stack(seen.attentions)[:, 0].numpy()  # [layer, head, query, key]
        self.logits: Floats = seen.logits[0].numpy()  # [position, vocab]
        self.logprobs: Floats = torch.log_softmax(seen.logits[0], -1).numpy()
        states = [*seen.hidden_states[:-1], before[0], seen.hidden_states[-1]]
        self.states: dict[int | None, Floats] = {
            layer: state[0].numpy() for layer, state in zip(LAYERS, states, strict=True)
        }

    def pooled(self, layer: int | None, pooling: str) -> Floats:
        """Return the vector, or the vectors, that /v1/embeddings should give, not normalised."""
        state = self.states[layer]
        pooled: Floats = {"none": state, "mean": state.mean(0), "last": state[-1]}[pooling]
        return pooled


class Family:
    """One checkpoint, its prompts, transformers' numbers and the two servers."""

    def __init__(self, folder: Path, prompts: list[Ids], roomy: httpx.Client, tight: httpx.Client) -> None:
        self.prompts = prompts
        self.roomy, self.tight = roomy, tight
        self.network: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        self.token_texts = Tokenizer.from_folder(folder).token_strings(range(VOCAB_SIZE))
        self.references = [Reference(self.network, prompt) for prompt in prompts]
        self.questions = [question for index in range(len(prompts)) for question in questions(index, prompts[index])]

    @cached_property
    def alone(self) -> list[Answer]:
        """Return the answer to each question, sent while the server is idle."""
        return [ask(self.tight, question) for question in self.questions]

    @cached_property
    def together(self) -> list[Answer]:
        """Return the same, eight at once, of a server that has not seen the prompts."""
        return ask_together(self.roomy, self.questions)

    def named(self, kind: str) -> Iterator[tuple[Question, Answer, Reference]]:
        for question, answer in zip(self.questions, self.alone, strict=True):
            if question.name[0] == kind:
                yield question, answer, self.references[question.prompt]

    def generated(self) -> Iterator[tuple[dict[str, Any], Ids, Reference]]:
        """Return each greedy choice, its tokens, and transformers on the prompt and these tokens."""
        for question, answer, _ in self.named("generate"):
            tokens: Ids = answer.choice["token_ids"]
            assert len(tokens) == NUM_GENERATED
            yield answer.choice, tokens, Reference(self.network, self.prompts[question.prompt] + tokens)


def questions(index: int, prompt: Ids) -> Iterator[Question]:
    """Return all questions about a prompt. Questions that can use a cached prefix are first, so that they do not use it
    when sent one at a time.
    """
    greedy = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    generate = {**greedy, "max_tokens": NUM_GENERATED, "logprobs": NUM_TOP}
    yield Question(index, ("generate",), "/v1/completions", generate)
    score = {**greedy, "max_tokens": 1, "prompt_logprobs": NUM_TOP}
    yield Question(index, ("score",), "/v1/completions", score)
    yield Question(index, ("attention",), "/v1/attention", {"input": prompt})
    for place, layer in enumerate(LAYERS):  # with another pooling for the next prompt
        pooling = POOLINGS[(index + place) % len(POOLINGS)]
        embed = {"input": prompt, "layer": layer, "pooling": pooling, "normalize": False}
        yield Question(index, ("embed", layer, pooling), "/v1/embeddings", embed)


def ask(server: httpx.Client, question: Question) -> Answer:
    accept = "application/json" if question.path == "/v1/completions" else "application/vnd.safetensors"
    response = server.post(question.path, json=question.body, headers={"Accept": accept})
    assert response.status_code == 200, response.text
    if accept == "application/json":
        answer = response.json()
        (choice,) = answer["choices"]
        return Answer({}, choice, answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return Answer(load(response.content), {}, 0)


def ask_together(server: httpx.Client, asked: Sequence[Question]) -> list[Answer]:
    """Return all answers, in the order of the questions. The questions are sent in another order, so that eight of all
    kinds run at once.
    """
    order = random.Random(0).sample(range(len(asked)), len(asked))
    with ThreadPoolExecutor(NUM_PROMPTS) as pool:
        found = dict(zip(order, pool.map(lambda i: ask(server, asked[i]), order), strict=True))
    return [found[i] for i in range(len(asked))]


def counter(server: httpx.Client, name: str) -> float:
    lines = [line.rpartition(" ") for line in server.get("/metrics").text.splitlines()]
    return sum(float(value) for label, _, value in lines if label.partition("{")[0] == name)


def assert_same_bits(family: Family, answers: list[Answer]) -> None:
    different = [
        (question.prompt, *question.name)
        for question, one, other in zip(family.questions, family.alone, answers, strict=True)
        if one.bits != other.bits
    ]
    assert not different


def assert_top(given: dict[str, float], names: list[str], expected: Floats, chosen: int) -> None:
    """Assert that `given` (by text or id) is the top of `expected` [vocab] and the chosen token, to within the
    tolerance.

    names: each token's own. The likeliest of tokens with one text has the text as its key, the others `token_id:N`.
    """
    likeliest: dict[str, int] = {}
    for token in np.argsort(-expected).tolist():
        likeliest.setdefault(names[token], token)
    by_id = {f"token_id:{token}": token for token in range(len(names))}
    found = {name: likeliest[name] if name in likeliest else by_id[name] for name in given}
    last = float(np.sort(expected)[-NUM_TOP])
    assert len(set(found.values())) == len(given)
    assert {token for token, logprob in enumerate(expected.tolist()) if logprob > last + TOLERANCE} <= {*found.values()}
    assert {token for token in found.values() if expected[token] < last - TOLERANCE} <= {chosen}
    assert max(abs(logprob - expected[found[name]]) for name, logprob in given.items()) <= TOLERANCE


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    seed = secrets.randbits(32)
    print(f"prompts of {request.param} are drawn from seed {seed}")  # shown when a test fails
    draw = random.Random(seed)
    lengths = draw.sample(range(3 * BLOCK_SIZE, CONTEXT - NUM_GENERATED - BLOCK_SIZE), NUM_PROMPTS)
    prompts = [[draw.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in lengths]
    folder = folder_of(request.param)
    one_context = CONTEXT // BLOCK_SIZE * KVCache.bytes_per_block(read_config(folder), BLOCK_SIZE, torch.float32)
    arguments = server_arguments(folder)
    roomy, tight = shared_server(*arguments), shared_server(*arguments, "--kv-cache-memory", str(one_context))
    with (
        httpx.Client(base_url=roomy.url, timeout=120) as to_roomy,
        httpx.Client(base_url=tight.url, timeout=120) as to_tight,
    ):
        yield Family(folder, prompts, to_roomy, to_tight)


def test_attention_of_every_layer_and_head_is_that_of_transformers(family: Family) -> None:
    for _, answer, reference in family.named("attention"):
        (pattern,) = answer.tensors.values()
        assert pattern.shape == reference.patterns.shape
        assert np.abs(pattern - reference.patterns).max() <= PATTERN_TOLERANCE


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers(family: Family) -> None:
    for prompt, (choice, tokens, reference) in zip(family.prompts, family.generated(), strict=True):
        logits = reference.logits[len(prompt) - 1 : -1]
        second, first = np.sort(logits)[:, -2:].T
        is_clear = first - second > TOLERANCE  # in a tie of float32 either token is right
        assert is_clear.mean() > 0.9
        assert (logits.argmax(-1) == tokens)[is_clear].all()
        expected = reference.logprobs[len(prompt) - 1 : -1]
        written = choice["logprobs"]
        given = np.array(written["token_logprobs"])
        assert np.abs(given - expected[np.arange(NUM_GENERATED), tokens]).max() <= TOLERANCE
        for top, row, token in zip(written["top_logprobs"], expected, tokens, strict=True):
            assert_top(top, family.token_texts, row, token)


def test_logprobs_of_a_prompt_are_the_log_softmax_of_transformers_logits(family: Family) -> None:
    for question, answer, reference in family.named("score"):
        prompt = family.prompts[question.prompt]
        first, *entries = answer.choice["prompt_logprobs"]
        assert first is None
        for token, entry, row in zip(prompt[1:], entries, reference.logprobs[:-1], strict=True):
            given = {token_id: scored["logprob"] for token_id, scored in entry.items()}
            assert str(token) in given
            assert_top(given, [str(token_id) for token_id in range(VOCAB_SIZE)], row, token)


def test_embeddings_of_every_layer_and_pooling_are_those_of_transformers(family: Family) -> None:
    for question, answer, reference in family.named("embed"):
        _, layer, pooling = question.name
        (vectors,) = answer.tensors.values()
        expected = reference.pooled(layer, pooling)
        assert vectors.shape == expected.shape
        assert np.abs(vectors - expected).max() <= TOLERANCE, question.name


def test_eight_at_once_get_the_same_bits_as_each_alone(family: Family) -> None:
    assert_same_bits(family, family.together)


def test_answers_after_a_prefix_hit_are_the_same_bits(family: Family) -> None:
    cold = [answer.num_cached for question, answer, _ in family.named("generate")]
    assert cold == [0] * NUM_PROMPTS
    assert family.together  # now the prompts are known
    before = counter(family.roomy, "lightwell_prefix_cache_hits_total")
    again = [ask(family.roomy, question) for question in family.questions]
    assert counter(family.roomy, "lightwell_prefix_cache_hits_total") > before
    hits = [a.num_cached for a, q in zip(again, family.questions, strict=True) if q.name[0] == "generate"]
    assert min(hits) >= BLOCK_SIZE
    assert_same_bits(family, again)


def test_answers_after_preemption_are_the_same_bits(family: Family) -> None:
    generating, alone = zip(*((question, answer.bits) for question, answer, _ in family.named("generate")), strict=True)
    num_before = counter(family.tight, "lightwell_num_preemptions_total")
    for _ in range(5):  # which requests are in the cache together is chance
        assert [answer.bits for answer in ask_together(family.tight, generating)] == [*alone]
        if counter(family.tight, "lightwell_num_preemptions_total") > num_before:
            break
    else:
        raise AssertionError("no request was preempted")
    assert_same_bits(family, ask_together(family.tight, family.questions))
