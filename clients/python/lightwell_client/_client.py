"""The synchronous client: a method for each route.

clients/python/write_client.py writes this file from _async_client.py: change that one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from lightwell_client import _calls, _decisions, _mechanisms, _page_view, _parsing, _scores, _weight_slices, _weights
from lightwell_client._attention import AttentionResult
from lightwell_client._connection import Connection, Stream
from lightwell_client._decisions import Decisions, DecisionsOptions
from lightwell_client._embeddings import Embeddings
from lightwell_client._exceptions import ApiError
from lightwell_client._inspection import Inspection
from lightwell_client._inspection_result import L
from lightwell_client._options import (
    AttentionOptions,
    ChatOptions,
    DetokenizeOptions,
    EmbeddingOptions,
    GenerateOptions,
    Message,
    ModelOptions,
    OneText,
    Options,
    ParseOptions,
    Prompt,
    Texts,
    TokenizeOptions,
    documented_arguments,
)
from lightwell_client._page_view import PageView, ShowOptions
from lightwell_client._parsing import Parsed
from lightwell_client._predictions import LENS, NEXT, LensOptions, LensResult, NextOptions, NextResult
from lightwell_client._results import ChatChunk, ChatCompletion, Completion, CompletionChunk, Health, Model, Tokens
from lightwell_client._scores import Classification, ClassifyOptions, Reranking, RerankOptions, ScoreOptions, Scores
from lightwell_client._trace import TRACE, TraceOptions, TraceResult
from lightwell_client._weight_slices import WeightName, Weights, WeightsOptions

T = TypeVar("T")


@documented_arguments
class Client(Connection):
    """Sends requests to a Lightwell server, or for text and embeddings to any OpenAI-style server. It is safe to share
    between threads.

    Args:
        base_url: the server's address, with or without /v1.
        api_key: sent as a bearer token.
        model: the model to name in each request; None leaves it to the server.
        timeout: seconds of silence before TimedOut (not the length of the whole answer), or an httpx.Timeout.
        max_retries: retries after a failed connection, 429 or 503. Retry-After is honoured. A request is never
            retried after its answer has begun. An earlier retry is safe, because the server stores nothing.
        http_client: an httpx.Client to send with (proxies, certificates, transports); closing it stays with you.

    Raises:
        ValueError: base_url is no http(s) address, max_retries is negative.
    """

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Completion:
        """Continue a text (POST /v1/completions).

        Raises:
            LightwellError: see the tree in `lightwell_client.LightwellError`'s module.
        """
        return self._send(_calls.generate(self._config.model, prompt, options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream[CompletionChunk]:
        """Continue a text, chunk by chunk; the chunks' texts joined are the text that `generate` gives."""
        return Stream(self._chunks(_calls.stream(self._config.model, prompt, options)))

    def chat(self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]) -> ChatCompletion:
        """Answer a conversation (POST /v1/chat/completions); a bare text is one message of the user."""
        return self._send(_calls.chat(self._config.model, messages, options))

    def chat_stream(self, messages: str | Sequence[Message], **options: Unpack[ChatOptions]) -> Stream[ChatChunk]:
        """Answer a conversation, chunk by chunk."""
        return Stream(self._chunks(_calls.chat_stream(self._config.model, messages, options)))

    @overload
    def parse(
        self, messages: str | Sequence[Message], schema: type[T], **options: Unpack[ParseOptions]
    ) -> Parsed[T]: ...
    @overload
    def parse(
        self, messages: str | Sequence[Message], schema: Mapping[str, Any], **options: Unpack[ParseOptions]
    ) -> Parsed[Any]: ...
    def parse(
        self, messages: str | Sequence[Message], schema: type[Any] | Mapping[str, Any], **options: Unpack[ParseOptions]
    ) -> Parsed[Any]:
        """Answer a conversation with JSON that follows a schema, and parse it: `value` has the given type, or is the
        result of json.loads for a dict.

        Raises:
            NotParsed: the answer was cut off, calls a tool, or does not match the schema.
            TypeError: there is no JSON schema of such a type.
        """
        return self._send(_parsing.parse(self._config.model, messages, schema, options))

    @overload
    def attention(self, input: Texts, **options: Unpack[AttentionOptions]) -> list[AttentionResult]: ...
    @overload
    def attention(self, input: OneText, **options: Unpack[AttentionOptions]) -> AttentionResult: ...
    def attention(
        self, input: OneText | Texts, **options: Unpack[AttentionOptions]
    ) -> AttentionResult | list[AttentionResult]:
        """Return attention patterns (POST /v1/attention): one result for a text, its ids or messages; a list for
        several.

        Without `layers` and `heads` it returns all of them. Numbers are sent exactly, as binary, and need numpy.
        """
        return _calls.one_or_all(input, self._send(_calls.attention(self._config.model, input, options)))

    @overload
    def trace(
        self, input: Texts, points: str | Sequence[str], **options: Unpack[TraceOptions]
    ) -> list[TraceResult]: ...
    @overload
    def trace(self, input: OneText, points: str | Sequence[str], **options: Unpack[TraceOptions]) -> TraceResult: ...
    def trace(
        self, input: OneText | Texts, points: str | Sequence[str], **options: Unpack[TraceOptions]
    ) -> TraceResult | list[TraceResult]:
        """Return named tensors of an exact pass (POST /v1/trace), in TransformerLens's names: "hook_resid_post" names
        the point in every layer (or in `layers`), "blocks.0.attn.hook_q" a single one.
        """
        names = [points] if isinstance(points, str) else list(points)
        return self._inspect(TRACE, input, options, points=names)

    @overload
    def next(self, input: Texts, **options: Unpack[NextOptions]) -> list[NextResult]: ...
    @overload
    def next(self, input: OneText, **options: Unpack[NextOptions]) -> NextResult: ...
    def next(self, input: OneText | Texts, **options: Unpack[NextOptions]) -> NextResult | list[NextResult]:
        """Return the next token's distribution (POST /v1/next), at several temperatures at once."""
        return self._inspect(NEXT, input, options)

    @overload
    def lens(self, input: Texts, **options: Unpack[LensOptions]) -> list[LensResult]: ...
    @overload
    def lens(self, input: OneText, **options: Unpack[LensOptions]) -> LensResult: ...
    def lens(self, input: OneText | Texts, **options: Unpack[LensOptions]) -> LensResult | list[LensResult]:
        """Return the prediction of each layer at each position, the logit lens (POST /v1/lens)."""
        return self._inspect(LENS, input, options)

    @overload
    def explain(
        self, input: Texts, layer: int, head: int, **options: Unpack[_mechanisms.ExplainOptions]
    ) -> list[_mechanisms.Explanation]: ...
    @overload
    def explain(
        self, input: OneText, layer: int, head: int, **options: Unpack[_mechanisms.ExplainOptions]
    ) -> _mechanisms.Explanation: ...
    def explain(
        self, input: OneText | Texts, layer: int, head: int, **options: Unpack[_mechanisms.ExplainOptions]
    ) -> _mechanisms.Explanation | list[_mechanisms.Explanation]:
        """Explain one query of one head, step by step with its real numbers (POST /v1/explain)."""
        return self._inspect(_mechanisms.EXPLAIN, input, options, layer=layer, head=head)

    @overload
    def contributions(
        self, input: Texts, **options: Unpack[_mechanisms.ContributionsOptions]
    ) -> list[_mechanisms.Contributions]: ...
    @overload
    def contributions(
        self, input: OneText, **options: Unpack[_mechanisms.ContributionsOptions]
    ) -> _mechanisms.Contributions: ...
    def contributions(
        self, input: OneText | Texts, **options: Unpack[_mechanisms.ContributionsOptions]
    ) -> _mechanisms.Contributions | list[_mechanisms.Contributions]:
        """Return the contribution of each key to each query, and its effect on a target token's logit (POST
        /v1/contributions).
        """
        return self._inspect(_mechanisms.CONTRIBUTIONS, input, options)

    @overload
    def trajectory(
        self, input: Texts, **options: Unpack[_mechanisms.TrajectoryOptions]
    ) -> list[_mechanisms.Trajectory]: ...
    @overload
    def trajectory(
        self, input: OneText, **options: Unpack[_mechanisms.TrajectoryOptions]
    ) -> _mechanisms.Trajectory: ...
    def trajectory(
        self, input: OneText | Texts, **options: Unpack[_mechanisms.TrajectoryOptions]
    ) -> _mechanisms.Trajectory | list[_mechanisms.Trajectory]:
        """Return how the vectors of some positions change through the layers (POST /v1/trajectory)."""
        return self._inspect(_mechanisms.TRAJECTORY, input, options)

    @overload
    def rollout(self, input: Texts, **options: Unpack[_mechanisms.RolloutOptions]) -> list[_mechanisms.Rollout]: ...
    @overload
    def rollout(self, input: OneText, **options: Unpack[_mechanisms.RolloutOptions]) -> _mechanisms.Rollout: ...
    def rollout(
        self, input: OneText | Texts, **options: Unpack[_mechanisms.RolloutOptions]
    ) -> _mechanisms.Rollout | list[_mechanisms.Rollout]:
        """Return attention through the layers, by rollout or by flow (POST /v1/rollout)."""
        return self._inspect(_mechanisms.ROLLOUT, input, options)

    @overload
    def heads(self, input: Texts, **options: Unpack[_mechanisms.HeadsOptions]) -> list[_mechanisms.HeadScores]: ...
    @overload
    def heads(
        self, input: OneText | None = None, **options: Unpack[_mechanisms.HeadsOptions]
    ) -> _mechanisms.HeadScores: ...
    def heads(
        self, input: OneText | Texts | None = None, **options: Unpack[_mechanisms.HeadsOptions]
    ) -> _mechanisms.HeadScores | list[_mechanisms.HeadScores]:
        """Return scores of each head on a text, by default on repeated random tokens (POST /v1/heads)."""
        return self._inspect(_mechanisms.HEADS, input, options)

    def correlations(
        self, input: OneText | Texts, point: str, **options: Unpack[_weights.CorrelationsOptions]
    ) -> _weights.Correlations:
        """Return how the numbers of a point correlate over the positions of one or several texts (POST
        /v1/geometry).
        """
        call = _weights.CORRELATIONS.call(self._config.model, options, input=input, point=point)
        return (self._send(call))[0]

    def parameters(self, model: str | None = None, **options: Unpack[Options]) -> _weights.Parameters:
        """Return where the parameters are, component by component (GET /v1/models/NAME/parameters)."""
        return self._send(_weights.parameters(self._name(model), options))

    def geometry(self, matrix: str, **options: Unpack[_weights.GeometryOptions]) -> _weights.Geometry:
        """Return how the rows or columns of a matrix are arranged, compared with chance (GET
        /v1/models/NAME/geometry): "W_E", "blocks.0.attn.W_V", or "mlp.W_in" with `layer`.
        """
        name = self._name(options.get("model"))
        return (self._send(_weights.geometry(name, matrix, options)))[0]

    def weight_names(self, **options: Unpack[ModelOptions]) -> list[WeightName]:
        """Return every weight by TransformerLens's name, with its axes and shape (GET /v1/models/NAME/weights)."""
        return self._send(_weight_slices.weight_names(self._name(options.get("model")), options))

    def weights(self, weight: str, **options: Unpack[WeightsOptions]) -> Weights:
        """Return the numbers of a weight, or of some of its rows and columns (GET /v1/models/NAME/weights/...): "W_E",
        "blocks.0.attn.W_Q", or "W_Q" with `layer` and `head`. A server with keys may want an admin key.
        """
        model = self._name(options.get("model"))
        return (self._send(_weight_slices.weights(model, weight, options)))[0]

    def circuits(self, **options: Unpack[_weights.CircuitsOptions]) -> _weights.Circuits:
        """Return the OV and QK circuits of heads: singular values, ranks, copying (POST /v1/circuits)."""
        return (self._send(_weights.CIRCUITS.call(self._config.model, options)))[0]

    def decisions(
        self,
        input: str | Sequence[Mapping[str, Any]],
        questions: Sequence[Mapping[str, Any]],
        **options: Unpack[DecisionsOptions],
    ) -> Decisions:
        """Answer questions about a text, or a conversation, by the probability of each option (POST /v1/decisions)."""
        return self._send(_decisions.decisions(self._config.model, input, questions, options))

    def show(self, view: str, input: str, **options: Unpack[ShowOptions]) -> PageView:
        """Return a view of the server's page with its answers, which a notebook shows and `save` writes as one file.
        Neither needs the server afterwards; the view contains no key.

        Raises:
            NotFound: the server has no such view for clients; the message lists the available views.
        """
        steps = _page_view.steps(self._config.root, self._config.model, view, input, options)
        step = next(steps)
        while not isinstance(step, PageView):
            try:
                content = self._send(step)
            except ApiError as error:
                step = steps.throw(error)
            else:
                step = steps.send(content)
        return step

    def embed(self, input: Prompt, **options: Unpack[EmbeddingOptions]) -> Embeddings:
        """Return a vector for each input (POST /v1/embeddings)."""
        return self._send(_calls.embed(self._config.model, input, options))

    def rerank(
        self, query: str, documents: Sequence[str | Mapping[str, str]], **options: Unpack[RerankOptions]
    ) -> Reranking:
        """Return the documents by how well they answer the query, the best first (POST /v1/rerank)."""
        return self._send(_scores.rerank(self._config.model, query, documents, options))

    def score(self, first: str | Sequence[str], second: str | Sequence[str], **options: Unpack[ScoreOptions]) -> Scores:
        """Return the score of each pair (POST /v1/score): one text with each of the others, or each with its own."""
        return self._send(_scores.score(self._config.model, first, second, options))

    def classify(self, input: Prompt, **options: Unpack[ClassifyOptions]) -> Classification:
        """Return the labels of each input (POST /v1/classify)."""
        return self._send(_scores.classify(self._config.model, input, options))

    def tokenize(self, text: str | Sequence[Message], **options: Unpack[TokenizeOptions]) -> Tokens:
        """Return the token ids of a text, or of messages as the chat template writes them."""
        return self._send(_calls.tokenize(self._config.model, text, options))

    def detokenize(self, token_ids: Sequence[int], **options: Unpack[DetokenizeOptions]) -> str:
        """Return the text of token ids."""
        return self._send(_calls.detokenize(self._config.model, token_ids, options))

    def models(self, **options: Unpack[Options]) -> list[Model]:
        """Return the served models, loaded or not: each model, then its LoRA adapters with the model as `parent`."""
        return self._send(_calls.models(options))

    def load_lora(self, name: str, path: str, **options: Unpack[ModelOptions]) -> None:
        """Let the server load a LoRA adapter from a folder in its --lora-root (POST /v1/load_lora_adapter): then `name`
        is accepted as `model`. It changes the first model, or `model`. A server with keys wants an admin key.
        """
        self._send(_calls.load_lora(name, path, options))

    def unload_lora(self, name: str, **options: Unpack[Options]) -> None:
        """Let the server forget a LoRA adapter (POST /v1/unload_lora_adapter)."""
        self._send(_calls.unload_lora(name, options))

    def capabilities(self, **options: Unpack[ModelOptions]) -> dict[str, Any]:
        """Return the capabilities of a model."""
        return self._send(_calls.capabilities(self._config.model, options))

    def version(self, **options: Unpack[Options]) -> str:
        """Return the server's version."""
        return self._send(_calls.version(options))

    def health(self, **options: Unpack[Options]) -> Health:
        """Return whether the server accepts requests now. It raises only if the server cannot be reached."""
        return self._send(_calls.health(options))

    def _inspect(
        self, inspection: Inspection[L], input: OneText | Texts | None, options: Mapping[str, Any], **fields: Any
    ) -> L | list[L]:
        """Return the result of one input, or the results of several."""
        call = inspection.call(self._config.model, options, input=input, **fields)
        return _calls.one_or_all(input, self._send(call))

    def _name(self, model: str | None) -> str:
        """Return the model to name in a path: the one given, the client's, or the only one that the server has."""
        return model or self._config.model or (self.models())[0].id
