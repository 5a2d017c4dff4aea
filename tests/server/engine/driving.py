"""Runs requests through an engine in process and gathers the outputs of each, in a form that compares bit for bit."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, points_of, stack_config, why_absent
from lightwell.model.hooks.point_names import stacks as stacks_of
from lightwell.model.hooks.points import Stack
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.outputs import Array, RequestOutput, TokenLogprobs
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    GenerateTask,
    HeadScoresTask,
    Intervention,
    LensTask,
    PointCapture,
    PoolingMode,
    Task,
    TraceTask,
)
from lightwell.server.engine.messages.sampling_params import SamplingParams

CPU = torch.device("cpu")
Load = Callable[[str], Transformer]
"""Returns the network of one of `tiny.VARIANTS`."""


@dataclass
class Answer:
    """All outputs of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    tensors: list[dict[str, tuple[str, tuple[int, ...], bytes]]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    num_accepted: int = field(default=0, compare=False)
    num_rejected: int = field(default=0, compare=False)

    def add(self, output: RequestOutput) -> None:
        if output.token_id is not None:
            self.tokens.append(output.token_id)
            self.logprobs.append(output.logprobs)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = tuple(output.prompt_logprobs)
        if output.tensors:
            self.tensors.append({k: (a.dtype, a.shape, bytes(a.data)) for k, a in output.tensors.items()})
        self.finish_reason = output.finish_reason or self.finish_reason
        self.error = output.error or self.error
        self.num_accepted = max(self.num_accepted, output.num_accepted)
        self.num_rejected = max(self.num_rejected, output.num_rejected)

    def array(self, name: str, event: int = 0) -> np.ndarray:
        dtype, shape, data = self.tensors[event][name]
        return np.frombuffer(data, dtype).reshape(shape)


def as_numpy(array: Array) -> np.ndarray:
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


def load(folder: Path, dtype: torch.dtype = torch.float32, device: torch.device = CPU, **options: Any) -> Transformer:
    return load_model(folder, read_config(folder), dtype, device, **options)


def build(
    model: Transformer,
    *,
    num_blocks: int = 200,
    block_size: int = 8,
    folder: Path = Path("unused"),
    **config: Any,
) -> Engine:
    """Return an engine around a loaded network, with a cache of its own; only grammars need its folder."""
    settings = EngineConfig(model=folder, **config)
    cache = KVCache(
        model.cache_config,
        num_blocks,
        block_size,
        model.dtype,
        model.device,
        num_sequences=settings.max_num_seqs,
        keys_in_rows=model.keys_in_rows,
    )
    return Engine(model, cache, settings, model.config.max_model_len)


def predicted(each: EngineRequest, answer: Answer) -> EngineRequest:
    """Return a request for text with its own answer as its prediction, in which every seventh token is wrong."""
    if not isinstance(each.task, GenerateTask):
        return each
    wrong = [3 + (token + 1) % 40 if i % 7 == 4 else token for i, token in enumerate(answer.tokens)]
    return replace(each, task=replace(each.task, prediction=tuple(wrong)))


def request(
    uid: int,
    token_ids: Iterable[int],
    task: Task,
    deadline: float | None = None,
    *,
    encoded: Iterable[int] = (),
    interventions: Iterable[Intervention] = (),
) -> EngineRequest:
    return EngineRequest(
        uid=uid,
        prompt_token_ids=tuple(token_ids),
        task=task,
        arrival_time=time.monotonic(),
        deadline=deadline,
        encoder_token_ids=tuple(encoded),
        interventions=tuple(interventions),
    )


def everything(config: ModelConfig, *stacks: Stack) -> TraceTask:
    """Return a task for all points of these stacks (none named: of all), every number."""
    return TraceTask(
        points=tuple(
            PointCapture(name=full_name(config, stack, point.name, layer), stack=stack, layer=layer, point=point.name)
            for stack in stacks or stacks_of(config)
            for point in points_of(config, stack)
            for layer in (range(stack_config(config, stack).num_layers) if point.in_block else (None,))
            if why_absent(config, stack, point, layer) is None
        )
    )


def two_heads(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Return a head of each of the first two layers that have attention: (layer, head)."""
    first, second = config.attention_layers[:2]
    return (first, 1), (second, 0)


def array(values: Any) -> Array:
    """Return float32 numbers as an intervention carries them."""
    numbers = np.ascontiguousarray(values, np.float32)
    return Array("float32", numbers.shape, numbers.tobytes())


def generate(max_tokens: int = 8, *, seed: int = 1, temperature: float = 0.0, **options: Any) -> GenerateTask:
    attention = options.pop("attention", None)
    prompt = options.pop("attention_prompt", False)
    grammar = options.pop("grammar", None)
    params = SamplingParams(max_tokens=max_tokens, seed=seed, temperature=temperature, **options)
    return GenerateTask(sampling=params, attention=attention, attention_prompt=prompt, grammar=grammar)


def each_kind_of_task(config: ModelConfig, **of_texts: Any) -> list[Task]:
    """Return tasks of each kind that the model can answer, a trace of everything first. of_texts: options of texts."""
    pairs = two_heads(config)
    looking = AttentionCapture(pairs=pairs, part="encoder" if config.kind == "encoder" else "decoder")
    tasks: list[Task] = [everything(config), AttentionTask(capture=replace(looking, resize=5))]
    tasks.append(AttentionTask(capture=looking))
    if config.kind == "encoder-decoder":
        tasks.append(AttentionTask(capture=replace(looking, part="encoder")))
    if config.kind != "encoder":
        texts: list[tuple[int, dict[str, Any]]] = [
            (9, {"logprobs": 4, "prompt_logprobs": 2}),
            (14, {"temperature": 0.9, "seed": 7, "top_p": 0.9}),
            (7, {"attention": looking, "attention_prompt": True}),
        ]
        tasks += [generate(count, **options, ignore_eos=True, **of_texts) for count, options in texts]
        tasks.append(HeadScoresTask(pairs=pairs, offsets=(1,)))
        if config.altup is None:
            tasks.append(LensTask(layers=(0, 1, 2), positions=(0, 5), top_k=3))
    else:
        tasks.append(AttentionTask(capture=replace(looking, queries=(3, 0), top_k=4)))
        tasks.append(AttentionTask(capture=replace(looking, kind="scores", resize=5)))
        tasks.append(HeadScoresTask(pairs=pairs, part="encoder"))
    if config.kind != "encoder-decoder":
        modes: tuple[PoolingMode, ...] = ("max", "weightedmean", "mean_sqrt_len_tokens", "last")
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none", layer=1), EmbedTask(pooling="cls", layer=0)]
        tasks.append(EmbedTask(modes=modes))
    return tasks


def assert_same(found: dict[int, Answer], expected: dict[int, Answer]) -> None:
    for uid, answer in expected.items():
        assert found[uid] == answer, f"request {uid} was answered differently"


def assert_near(found: dict[int, Answer], expected: dict[int, Answer], *, rtol: float = 0.0) -> None:
    """Assert that tokens and ends are the same, and that numbers differ only by rounding; float16 by two roundings."""
    assert found.keys() >= expected.keys()
    for uid, other in expected.items():
        answer = found[uid]
        assert (answer.tokens, answer.finish_reason, answer.error) == (other.tokens, other.finish_reason, other.error)
        for one, two in zip(answer.logprobs, other.logprobs, strict=True):
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                assert abs(one.logprob - two.logprob) <= 1e-4
                assert [token for token, _ in one.top] == [token for token, _ in two.top]
        assert len(answer.tensors) == len(other.tensors)
        for event, tensors in enumerate(other.tensors):
            assert answer.tensors[event].keys() == tensors.keys()
            for name in tensors:
                mine, theirs = answer.array(name, event), other.array(name, event)
                relative = 2e-3 if mine.dtype == np.float16 else rtol
                absolute = 1e-5 if "attention" in name or "pattern" in name else 1e-4
                np.testing.assert_allclose(mine, theirs, relative, absolute, err_msg=f"{uid} {event} {name}")


def run(
    engine: Engine, requests: Sequence[EngineRequest], *, arrivals: Sequence[int] | None = None
) -> dict[int, Answer]:
    """Run `engine` until all is answered; request i is added before step arrivals[i] (0 if not given)."""
    waiting = sorted(zip(arrivals or [0] * len(requests), requests, strict=True), key=lambda pair: pair[0])
    answers = {each.uid: Answer() for each in requests}
    step, ready = 0, threading.Event()
    engine.call_when_ready(ready.set)
    while waiting or not all(answer.finish_reason for answer in answers.values()):
        while waiting and (waiting[0][0] <= step or not engine.has_work):
            engine.add_request(waiting.pop(0)[1])
        if not engine.has_work:  # a grammar is being compiled
            assert ready.wait(60)
            ready.clear()
            continue
        for output in engine.step().outputs:
            answers[output.uid].add(output)
        engine.check_integrity()
        step += 1
    return answers


def alone(model: Transformer, requests: Sequence[EngineRequest], **config: Any) -> dict[int, Answer]:
    """Run each request in an engine of its own, its prompt in one piece and nothing cached. config: as in `build`."""
    answers: dict[int, Answer] = {}
    for each in requests:
        engine = build(model, enable_prefix_caching=False, **config)
        answers |= run(engine, [replace(each, arrival_time=time.monotonic())])
    return answers
