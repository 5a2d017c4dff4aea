"""`LLM` and `AsyncLLM`: the engine in the caller's process, with every method of the Python client, and with
vLLM's names.
"""

import asyncio
import os
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, TypeVar, Unpack

import httpx

from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.config.settings import Settings, setting_names
from lightwell.server.library.many_inputs import all_or_none, in_parts, progress_bar
from lightwell.server.library.transports import AsyncLocalTransport, LocalTransport
from lightwell.server.lifecycle.in_process import Application
from lightwell_client import (
    AsyncClient,
    ChatCompletion,
    Classification,
    Client,
    Completion,
    Embeddings,
    LightwellError,
    Reranking,
    Scores,
)
from lightwell_client._calls import num_inputs
from lightwell_client._options import ChatOptions, EmbeddingOptions, GenerateOptions, Prompt
from lightwell_client._scores import ClassifyOptions, RerankOptions, ScoreOptions
from lightwell_client._wire import plain

R = TypeVar("R", Completion, ChatCompletion)
T = TypeVar("T")

_URL = "http://lightwell"
_OTHER_NAMES = {"tensor_parallel_size": "tensor_parallel", "quantization": "quantize"}
"""vLLM's names of settings."""
_IGNORED = ("enforce_eager", "runner", "trust_remote_code", "disable_log_stats", "swap_space")
"""vLLM's settings without a counterpart."""
_UNLIMITED = {
    "max_queue_time": "0", "request_timeout": "0", "load_timeout": "0", "worker_timeout": "1000000",
    "max_num_queued_requests": "1000000000", "max_num_queued_tokens": "1000000000000", "max_kv_demand": "1000000",
}  # fmt: skip
"""Defaults of the settings that protect a server from its clients."""
_MAX_TOKENS = 16
"""vLLM's default of `max_tokens`, for chats too; None is the rest of the context."""


class SamplingParams(SimpleNamespace):
    """Options of `generate` and `chat` as attributes, which may be changed: temperature, top_p, max_tokens, ...

    The names are in the client's `GenerateOptions` and `ChatOptions`; many are vLLM's.
    """

    _NAMES = frozenset(GenerateOptions.__annotations__) | frozenset(ChatOptions.__annotations__)

    def __init__(self, **options: Any) -> None:
        """Raises TypeError for an unknown name."""
        for name in options.keys() - self._NAMES:
            accepted = ", ".join(sorted(self._NAMES))
            raise TypeError(f"SamplingParams has no {name!r}{did_you_mean(name, self._NAMES)}; accepted: {accepted}")
        super().__init__(**{"max_tokens": _MAX_TOKENS} | options)

    def __getattr__(self, name: str) -> None:
        """Return None for an option that was not given. Raises AttributeError for another name."""
        if name not in self._NAMES:
            raise AttributeError(f"SamplingParams has no {name!r}")


Sampling = SamplingParams | Sequence[SamplingParams] | None


class _Batches:
    """Runs one request for each of many prompts, over an asynchronous client of the application."""

    def __init__(self, model: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> None:
        read = settings_of(model, settings)
        self.application = Application(read)
        weakref.finalize(self, self.application.close)  # at the end of the program, too
        self._max_together = 2 * read.max_num_seqs
        transport = AsyncLocalTransport(self.application)
        self._client = AsyncClient(
            _URL, timeout=None, max_retries=0, http_client=httpx.AsyncClient(transport=transport)
        )

    async def defaults(self) -> "SamplingParams":
        """Return the sampling parameters of the model's own files."""
        found: dict[str, Any] = (await self._client.capabilities())["default_sampling_params"]
        return SamplingParams(**{name: value for name, value in found.items() if value is not None})

    async def generate(
        self, prompts: Any, sampling: Sampling, options: Mapping[str, Any], use_tqdm: bool
    ) -> list[Completion]:
        async def one(prompt: str | Sequence[int], chosen: Mapping[str, Any]) -> Completion:
            if "max_tokens" not in chosen:  # null: without the field, a server generates 16
                chosen = {**chosen, "extra_body": {"max_tokens": None} | dict(chosen.get("extra_body") or {})}
            answer = await self._client.generate(prompt, **chosen)
            text = prompt if isinstance(prompt, str) else self.application.tokenizer.decode(prompt, False)
            return answer.model_copy(update={"prompt": text})

        return await self._all(one, prompts_of(prompts), sampling, options, use_tqdm)

    async def chat(
        self, messages: Any, sampling: Sampling, options: Mapping[str, Any], use_tqdm: bool
    ) -> list[ChatCompletion]:
        is_one = isinstance(messages, str) or (len(messages) > 0 and not isinstance(messages[0], list | tuple))

        async def one(conversation: Any, chosen: Mapping[str, Any]) -> ChatCompletion:
            if type(number := chosen.get("logprobs")) is int:
                chosen = {**chosen, "logprobs": True, "top_logprobs": number}
            answer = await self._client.chat(conversation, **chosen)
            ids = answer.prompt_token_ids or []
            return answer.model_copy(update={"prompt": self.application.tokenizer.decode(ids, False)})

        return await self._all(one, [messages] if is_one else messages, sampling, options, use_tqdm)

    async def _all(
        self,
        one: Callable[[Any, Mapping[str, Any]], Awaitable[R]],
        prompts: Sequence[Any],
        sampling: Sampling,
        options: Mapping[str, Any],
        use_tqdm: bool,
    ) -> list[R]:
        """Run a request for each prompt, and return the answers in their order. The first failure ends all."""
        each = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError(
                f"sampling_params: {len(each)} for {len(prompts)} prompts; one for all prompts, or one for each "
                "prompt, is accepted"
            )
        places = asyncio.Semaphore(self._max_together)
        with progress_bar(len(prompts), use_tqdm) as advance:

            async def run(number: int) -> R:
                chosen = vars(each[number] or SamplingParams()) | dict(options)
                if chosen.get("max_completion_tokens") is not None:
                    chosen["max_tokens"] = options.get("max_tokens")
                chosen = {name: value for name, value in chosen.items() if value is not None}
                try:
                    async with places:
                        answer = await one(prompts[number], {**chosen, "return_token_ids": True})
                except LightwellError as error:
                    error.add_note(f"It is the error of prompt {number} of {len(prompts)}.")
                    raise
                advance(1)
                return answer

            return await all_or_none([run(number) for number in range(len(prompts))])

    async def embed(self, input: Any, options: Mapping[str, Any], use_tqdm: bool) -> Embeddings:
        return await self._of_inputs(lambda inputs: self._client.embed(inputs, **options), input, use_tqdm)

    async def classify(self, input: Any, options: Mapping[str, Any], use_tqdm: bool) -> Classification:
        return await self._of_inputs(lambda inputs: self._client.classify(inputs, **options), input, use_tqdm)

    async def _of_inputs(self, ask: Callable[[Any], Awaitable[T]], input: Any, use_tqdm: bool) -> T:
        inputs, count = plain(input), num_inputs(input)
        if count == 1:
            return await ask(inputs)
        return await in_parts(count, lambda part: ask(inputs[part]), "data", use_tqdm)

    async def score(self, first: Any, second: Any, options: Mapping[str, Any], use_tqdm: bool) -> Scores:
        firsts, seconds = plain(first), plain(second)
        counts = {len(texts) for texts in (firsts, seconds) if isinstance(texts, list) and len(texts) != 1}
        if len(counts) != 1:  # one pair, or lists of different lengths, which the route refuses
            return await self._client.score(firsts, seconds, **options)

        def ask(part: slice) -> Awaitable[Scores]:
            one, two = (
                texts if isinstance(texts, str) or len(texts) == 1 else texts[part] for texts in (firsts, seconds)
            )
            return self._client.score(one, two, **options)

        return await in_parts(counts.pop(), ask, "data", use_tqdm)

    async def rerank(self, query: str, documents: Any, options: Mapping[str, Any], use_tqdm: bool) -> Reranking:
        texts = plain(documents)

        def ask(part: slice) -> Awaitable[Reranking]:
            return self._client.rerank(query, texts[part], **options)

        return await in_parts(len(texts), ask, "results", use_tqdm, most=options.get("top_n") or 0)


class LLM(Client):
    """A model in this process: the engine and every method of the client, without a server.

        llm = LLM("smollm2")
        for answer in llm.generate(["Paris is", "Rome is"], max_tokens=20): print(answer.text)
        llm.attention("The cat sat", layers=0).plot()

    `generate` and `chat` take one prompt or many, and return a list, as vLLM's do; many prompts are one batch. It is
    safe to share between threads. `close()`, or the end of a `with` block, frees the memory.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Load a model: a folder, a GGUF file, a hub id or a built-in name; None is the default model.

        settings: by the names of the flags of `lightwell serve`, with underscores: dtype, quantize, max_model_len,
            max_num_seqs, kv_cache_memory, threads, ...

        Raises TypeError for an unknown setting, ValueError for a wrong value or a model that cannot be served.
        """
        self._batches = _Batches(model, settings)
        transport = LocalTransport(self._batches.application)
        super().__init__(_URL, timeout=None, max_retries=0, http_client=httpx.Client(transport=transport))

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._batches.application.tokenizer

    def generate(  # type: ignore[override]  # a list, as vLLM returns it
        self, prompts: Any, sampling_params: Sampling = None, use_tqdm: bool = True, **options: Any
    ) -> list[Completion]:
        """Continue one or many texts. prompts: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, or a
        list of these. options: of the client's `generate`; they precede `sampling_params`, one for all or one each.

        Raises LightwellError, and ValueError for another number of `sampling_params`.
        """
        return self._batches.application.result(self._batches.generate(prompts, sampling_params, options, use_tqdm))

    def chat(  # type: ignore[override]  # a list, as vLLM returns it
        self, messages: Any, sampling_params: Sampling = None, use_tqdm: bool = True, **options: Any
    ) -> list[ChatCompletion]:
        """Answer one or many conversations. messages: a text, a list of messages, or a list of such lists.

        Raises as `generate`.
        """
        return self._batches.application.result(self._batches.chat(messages, sampling_params, options, use_tqdm))

    def embed(self, input: Prompt, use_tqdm: bool = True, **options: Unpack[EmbeddingOptions]) -> Embeddings:
        """Return a vector for each input; there may be any number. Raises LightwellError."""
        return self._batches.application.result(self._batches.embed(input, options, use_tqdm))

    def rerank(
        self,
        query: str,
        documents: Sequence[str | Mapping[str, str]],
        use_tqdm: bool = True,
        **options: Unpack[RerankOptions],
    ) -> Reranking:
        """Return the documents, of any number, by how well they answer the query. Raises LightwellError."""
        return self._batches.application.result(self._batches.rerank(query, documents, options, use_tqdm))

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        use_tqdm: bool = True,
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Return the score of each pair; there may be any number. Raises LightwellError."""
        return self._batches.application.result(self._batches.score(first, second, options, use_tqdm))

    def classify(self, input: Prompt, use_tqdm: bool = True, **options: Unpack[ClassifyOptions]) -> Classification:
        """Return the labels of each input; there may be any number. Raises LightwellError."""
        return self._batches.application.result(self._batches.classify(input, options, use_tqdm))

    def __repr__(self) -> str:
        return f"LLM({self._batches.application.name!r})"

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of the model's own files."""
        return self._batches.application.result(self._batches.defaults())

    def close(self) -> None:
        """End running requests, and free the memory. A second call does nothing."""
        self._batches.application.close()


class AsyncLLM(AsyncClient):
    """`LLM` for asyncio: the same arguments, the same methods, awaited."""

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Load a model, as `LLM` does; the event loop waits meanwhile."""
        self._batches = _Batches(model, settings)
        transport = AsyncLocalTransport(self._batches.application)
        super().__init__(_URL, timeout=None, max_retries=0, http_client=httpx.AsyncClient(transport=transport))

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._batches.application.tokenizer

    async def generate(  # type: ignore[override]
        self, prompts: Any, sampling_params: Sampling = None, use_tqdm: bool = True, **options: Any
    ) -> list[Completion]:
        """Continue one or many texts, as `LLM.generate`."""
        return await self._batches.generate(prompts, sampling_params, options, use_tqdm)

    async def chat(  # type: ignore[override]
        self, messages: Any, sampling_params: Sampling = None, use_tqdm: bool = True, **options: Any
    ) -> list[ChatCompletion]:
        """Answer one or many conversations, as `LLM.chat`."""
        return await self._batches.chat(messages, sampling_params, options, use_tqdm)

    async def embed(self, input: Prompt, use_tqdm: bool = True, **options: Unpack[EmbeddingOptions]) -> Embeddings:
        """Return a vector for each input, as `LLM.embed`."""
        return await self._batches.embed(input, options, use_tqdm)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str | Mapping[str, str]],
        use_tqdm: bool = True,
        **options: Unpack[RerankOptions],
    ) -> Reranking:
        """Return the documents by how well they answer the query, as `LLM.rerank`."""
        return await self._batches.rerank(query, documents, options, use_tqdm)

    async def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        use_tqdm: bool = True,
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Return the score of each pair, as `LLM.score`."""
        return await self._batches.score(first, second, options, use_tqdm)

    async def classify(
        self, input: Prompt, use_tqdm: bool = True, **options: Unpack[ClassifyOptions]
    ) -> Classification:
        """Return the labels of each input, as `LLM.classify`."""
        return await self._batches.classify(input, options, use_tqdm)

    def __repr__(self) -> str:
        return f"AsyncLLM({self._batches.application.name!r})"

    async def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of the model's own files."""
        return await self._batches.defaults()

    async def close(self) -> None:
        """End running requests, and free the memory. A second call does nothing."""
        await asyncio.to_thread(self._batches.application.close)


def settings_of(model: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> Settings:
    """Return the settings. Raises TypeError for an unknown name, and SettingsError for a wrong value."""
    flags: dict[str, Any] = {"model": None if model is None else str(model), **_UNLIMITED}
    accepted = [setting.name for setting in fields(Settings) if not setting.metadata["group"].of_server]
    accepted.append("served_model_name")
    for given, value in settings.items():
        name = _OTHER_NAMES.get(given, given)
        if name in _IGNORED:
            if name == "trust_remote_code" and value:
                raise ValueError(
                    "trust_remote_code: False is accepted; Lightwell does not run code from model repositories"
                )
            warnings.warn(f"{given} has no effect here", stacklevel=4)
        elif name not in accepted:
            if name in setting_names():
                raise TypeError(f"LLM has no setting {given!r}: it is for servers (`lightwell serve`)")
            raise TypeError(f"LLM has no setting {given!r}{did_you_mean(given, accepted)}")
        elif isinstance(value, list | tuple):
            flags[name] = [*map(str, value)]
        elif value is not None and value is not False:
            flags[name] = True if value is True else str(value)
    return Settings.from_sources(flags, {})


def prompts_of(prompts: Any) -> list[Any]:
    """Return each prompt as a text or token ids. Raises TypeError."""
    if hasattr(prompts, "tolist"):  # an array
        prompts = prompts.tolist()
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return prompts_of([prompts])
    found = []
    for prompt in prompts:
        if isinstance(prompt, Mapping):
            if not prompt.keys() & {"prompt", "prompt_token_ids"}:
                raise TypeError(f'prompts: {prompt!r:.200} needs "prompt" or "prompt_token_ids"')
            prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
        found.append(prompt)
    return found
