"""The routes that the loaded model can answer, and the reason for each other route. GET /v1/capabilities reports the
same reasons that the routes give.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lightwell.model.config import ModelConfig
from lightwell.server.config.auth.keys import ApiKey, Keyring
from lightwell.server.config.settings import Settings
from lightwell.server.engine.messages.request import Part
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.errors import BadRequest

CHATS: Mapping[str, str] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/messages", "/api/chat"), "messages"),
    "/v1/responses": "input",
}
"""The routes that need a chat template, with the field that holds the conversation."""
JUDGEMENTS = ("/v1/decisions", "/v1/systemone")
"""The routes that ask several questions about one input."""
SCORINGS = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")
"""The routes that score pairs of texts."""
CLASSIFICATIONS = ("/v1/classify", "/classify", "/predict")
"""The routes that label texts and pairs."""
ROUTES_OF_A_DECODER = ("/v1/completions", *CHATS, "/api/generate", "/generate", "/generate_stream", *JUDGEMENTS)
"""The routes that generate text, or read the probabilities of the next token."""
ROUTES_OF_A_HEAD = ("/v1/next", "/v1/lens")
"""The routes that need logits."""
SPARSE = "/embed_sparse"
"""The route of sparse vectors, which need an encoder's head."""
INSPECTIONS = {
    "/v1/attention": "attention",
    "/v1/trace": "trace",
    "/v1/next": "next_token",
    "/v1/lens": "lens",
    "/v1/explain": "explain",
    "/v1/contributions": "contributions",
    "/v1/trajectory": "trajectory",
    "/v1/heads": "heads",
    "/v1/rollout": "rollout",
    "/v1/geometry": "correlations",
    "/v1/circuits": "weights",
}
"""The inspection routes, each with its module of `server.dialects.inspect`."""
EMBEDDINGS = ("/v1/embeddings", "/api/embed", "/api/embeddings", "/embed", "/embed_all", "/similarity")
"""Routes that return embeddings."""
ROUTES_OF_ANY_MODEL = (
    EMBEDDINGS[0],
    *(route for route in INSPECTIONS if route not in ROUTES_OF_A_HEAD),
    *EMBEDDINGS[1:],
    "/",
)

_KINDS = {"encoder": "an encoder", "decoder": "a decoder without a head for words"}
ROUTE_OF_WEIGHTS = "/v1/models/{model_id}/weights"
"""The route that lists weights, which only some clients may read."""


@dataclass(frozen=True, slots=True)
class UnsupportedReason:
    """The reason why a route cannot be answered."""

    reason: str
    code: str = "not_supported_by_model"
    param: str | None = None


def why_not(model: ModelFiles, route: str) -> UnsupportedReason | None:
    """Return why this model cannot answer this route, or None if it can."""
    config = model.config
    if (config.kind == "encoder" or not config.has_head) and route in ROUTES_OF_A_DECODER:
        return _lacking(config, "writes no text")
    if config.kind == "encoder-decoder" and route in JUDGEMENTS:
        return UnsupportedReason(
            f"this model is an encoder-decoder ({config.architecture}): a question would change the output of its "
            "encoder, so the input could not be computed once for all questions; a decoder is needed"
        )
    if route in SCORINGS:
        return _why_no_scores(model)
    if route in CLASSIFICATIONS:
        return _why_no_labels(model)
    if not config.has_head and route in ROUTES_OF_A_HEAD:
        held = "a head that labels its whole input" if config.classifier else "no head that fills in masked words"
        return _lacking(config, f"predicts no token, since its files hold {held}")
    if route == SPARSE:
        return _why_not_sparse(model)
    if route == "/v1/rollout" and config.recurrence is not None:
        return UnsupportedReason(
            f"this model has attention only in layers {', '.join(map(str, config.attention_layers))}: a "
            f"{config.recurrence.kind} has no pattern, so there is no product over all layers; /v1/attention and "
            f"/v1/contributions are accepted"
        )
    if route == "/v1/lens" and config.altup is not None:
        return UnsupportedReason(
            f"{config.architecture} computes its logits from {config.altup.num_streams} residual streams: the first, "
            f"which has the points, is not enough for a prediction; /v1/next and /v1/trajectory are "
            "accepted"
        )
    if route in CHATS and model.chat_template is None:
        return UnsupportedReason(
            f"the model {model.id!r} has no chat template; POST /v1/completions is accepted, or start the "
            "server with --chat-template",
            "no_chat_template",
            CHATS[route],
        )
    return None


def is_for_text(model: ModelFiles) -> bool:
    """Return whether the model is for writing text: it can, and its files don't describe embeddings."""
    return why_not(model, "/generate") is None and not model.embedding_defaults.is_declared


def _why_no_scores(model: ModelFiles) -> UnsupportedReason | None:
    config, defaults, embeds = model.config, model.score_defaults, model.embedding_defaults
    head = config.classifier
    if defaults is not None and defaults.refusal is not None:
        return UnsupportedReason(f"the scores that this model's files describe cannot be made here: {defaults.refusal}")
    if head is not None and head.num_labels > 1:
        return UnsupportedReason(
            f"the head of this model ({config.architecture}) has {head.num_labels} labels, and a score is of one; POST "
            "/classify and /predict are accepted"
        )
    if defaults is None and embeds.is_declared and embeds.refusal is not None:
        return UnsupportedReason(f"the vectors that this model's files describe cannot be made here: {embeds.refusal}")
    # A network without any head is used for its states, and so is one with settings of pooling in its files.
    if defaults is None and not (embeds.is_declared and embeds.refusal is None) and config.has_head:
        return UnsupportedReason(
            f"this model ({config.architecture}) is not a reranker and not an embedding model; accepted are "
            "cross-encoders (networks with a head of one label, and decoders with sentence-transformers files that "
            "name the tokens for yes and no) and embedding models"
        )
    return None


def _why_no_labels(model: ModelFiles) -> UnsupportedReason | None:
    defaults, config = model.score_defaults, model.config
    if config.classifier is None:
        return UnsupportedReason(
            f"this model ({config.architecture}) has no classification head; networks with one "
            "(...ForSequenceClassification) are accepted"
        )
    if defaults is not None and defaults.refusal is not None:
        return UnsupportedReason(f"the labels that this model's files describe cannot be made here: {defaults.refusal}")
    return None


def _why_not_sparse(model: ModelFiles) -> UnsupportedReason | None:
    config, refusal = model.config, model.embedding_defaults.sparse.refusal
    if config.kind != "encoder" or not config.has_head:
        return UnsupportedReason(
            f"this model ({config.architecture}) has no masked-language-model head, which sparse vectors need; a "
            "masked language model is accepted"
        )
    if refusal is not None:
        return UnsupportedReason(f"the pooling in this model's files is not supported ({refusal})")
    return None


def why_no_weights(settings: Settings, keys: Keyring, key: ApiKey | None) -> UnsupportedReason | None:
    """Return why a client with this key (None: none is needed) may not read weights, or None if it may."""
    access = settings.weights_access or ("open" if keys.is_open else "admin")
    if access == "open" or (access == "admin" and key is not None and key.is_admin):
        return None
    if access == "off":
        return UnsupportedReason("this server hands out no weights (--weights-access off)", "weights_off")
    whose = "it has no keys, and so no admin" if key is None else f"the API key {key.name!r} is not an admin key"
    return UnsupportedReason(
        f"this server returns its weights only to admin keys, and {whose}; an admin key of --api-key-file is "
        "accepted, or every client with --weights-access open",
        "admin_key_needed",
    )


def _lacking(config: ModelConfig, lack: str) -> UnsupportedReason:
    """Return the reason why a network that writes nothing does not answer a route, and which routes it does answer."""
    others = (*ROUTES_OF_A_HEAD, *ROUTES_OF_ANY_MODEL) if config.has_head else ROUTES_OF_ANY_MODEL
    return UnsupportedReason(
        f"this model is {_KINDS[config.kind]} ({config.architecture}): it {lack}; {', '.join(others)} are accepted"
    )


def check_route(model: ServedModel, route: str) -> None:
    """Raise BadRequest when this model cannot answer this route."""
    refusal = why_not(model, route)
    if refusal is not None:
        raise BadRequest(f"{route}: {refusal.reason}.", param=refusal.param, code=refusal.code)


def parts_of(config: ModelConfig) -> tuple[Part, ...]:
    return ("encoder", "decoder", "cross") if config.kind == "encoder-decoder" else (config.kind,)


def check_part(model: ServedModel, part: Part | None, field: str = "part") -> Part:
    """Return the part of a request, or the one that null means. Raises BadRequest for one that the model lacks."""
    config = model.config
    has = parts_of(config)
    if part is None:
        return "encoder" if config.kind == "encoder" else "decoder"
    if part not in has:
        raise BadRequest(
            f"{field}: this model has no part {part!r}; its kind is {config.kind!r} ({config.architecture}); "
            f"accepted: {', '.join(map(repr, has))}.",
            param=field,
        )
    return part
