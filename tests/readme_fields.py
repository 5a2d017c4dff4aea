"""Writes the tables of docs/ that list the honoured, ignored and refused fields of other servers' requests. It reads
them from the code and does not interpret them.
"""

import json
from typing import Any


def fields_table() -> str:
    """Return every field of the requests that other servers have too: the routes that honour, ignore and refuse
    it.
    """
    from lightwell.server.schemas.chat_messages import ChatMessage
    from lightwell.server.schemas.embeddings import EmbeddingRequest
    from lightwell.server.schemas.generation import ChatCompletionRequest, CompletionRequest, StreamOptions
    from lightwell.server.schemas.tokens import TokenizeRequest

    objects: dict[str, type[Any]] = {
        "completions": CompletionRequest,
        "chat": ChatCompletionRequest,
        "embeddings": EmbeddingRequest,
        "tokenize": TokenizeRequest,
        "a message": ChatMessage,
        "stream_options": StreamOptions,
    }
    return _rows(_known_fields(objects))


def responses_table() -> str:
    """Return the fields that POST /v1/responses ignores and refuses, except the fields that chats treat alike."""
    from lightwell.server.schemas.generation import ChatCompletionRequest
    from lightwell.server.schemas.openai_responses import items, responses

    of_chats = _known_fields({"the body": ChatCompletionRequest})
    known = _known_fields(
        {
            "the body": responses.ResponsesRequest,
            "`text`": responses.TextConfig,
            "`reasoning`": responses.Reasoning,
            "`stream_options`": responses.ResponseStreamOptions,
            "a message": items.InputMessage,
            "`function_call`": items.FunctionCall,
            "`function_call_output`": items.FunctionCallOutput,
            "`reasoning` of the input": items.ReasoningItem,
            "a tool": items.FunctionTool,
        }
    )
    told = {key: where for key, where in known.items() if key[1] != "honoured" and of_chats.get(key) != where}
    for where, reasons in (("items", items.REFUSED_ITEMS), ("tools", items.REFUSED_TOOLS)):
        told |= {(name, f"refused: {why}"): [f"types of {where}"] for name, why in reasons.items()}
    why = "dropped if there are functions; otherwise refused: the server does not search"
    told |= {(name, why): ["types of tools"] for name in items.LEFT_OUT_TOOLS}
    return _rows(told)


def decisions_table() -> str:
    """Return the fields that POST /v1/decisions and /v1/systemone ignore and refuse, except fields of every route."""
    from lightwell.server.schemas.judgements import decisions, systemone
    from lightwell.server.schemas.judgements.fields import NO_IMAGES
    from lightwell.server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE

    bodies = {"`/v1/decisions`": decisions.DecisionsRequest, "`/v1/systemone`": systemone.SystemOneRequest}
    inside = {
        "a message": decisions.Message,
        "`function_call`": decisions.FunctionCall,
        "`function_call_output`": decisions.FunctionCallOutput,
    }
    everywhere = {*IGNORED_EVERYWHERE, *REFUSED_EVERYWHERE}
    known = _known_fields({**bodies, **inside})
    told = {key: where for key, where in known.items() if key[1] != "honoured" and key[0] not in everywhere}
    for where, reasons in (("items", decisions.REFUSED_ITEMS), ("parts", decisions.REFUSED_PARTS)):
        told |= {(name, f"refused: {why}"): [f"types of {where}"] for name, why in reasons.items()}
    return _rows(told | {("box", f"refused: {NO_IMAGES}"): ["types of questions of `/v1/systemone`"]})


def reranking_table() -> str:
    """Return every field of the routes that score and label, except the fields of every route."""
    from lightwell.server.schemas.base import RunFields
    from lightwell.server.schemas.judgements import classifying, reranking, scoring
    from lightwell.server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE

    known = _known_fields(
        {
            "rerank": reranking.RerankRequest,
            "rerank (TEI)": reranking.TeiRerankRequest,
            "score": scoring.ScoreRequest,
            "classify": classifying.ClassifyRequest,
            "predict": classifying.PredictRequest,
        }
    )
    everywhere = {*IGNORED_EVERYWHERE, *REFUSED_EVERYWHERE, *RunFields.model_fields} - {"truncation_side"}
    return _rows({key: where for key, where in known.items() if key[0] not in everywhere})


def messages_table() -> str:
    """Return the fields of bodies of Anthropic's API that are ignored or refused here, and where."""
    from lightwell.server.schemas.anthropic.blocks import BLOCKS, UNREAD_BLOCKS, AnthropicMessage
    from lightwell.server.schemas.anthropic.messages import (
        CountTokensRequest,
        JsonFormat,
        MessagesRequest,
        OutputConfig,
        Thinking,
        Tool,
        ToolChoice,
    )

    known = _known_fields(
        {
            "messages": MessagesRequest,
            "count_tokens": CountTokensRequest,
            "a message": AnthropicMessage,
            **{f"a block `{kind}`": block for kind, block in BLOCKS.items()},
            "a tool": Tool,
            "tool_choice": ToolChoice,
            "thinking": Thinking,
            "output_config": OutputConfig,
            "a format": JsonFormat,
        }
    )
    told = {key: where for key, where in known.items() if key[1] != "honoured"}
    return _rows(told | {(f'"type": "{kind}"', f"refused: {why}"): ["a block"] for kind, why in UNREAD_BLOCKS.items()})


def ollama_table() -> str:
    """Return every field of Ollama's requests that is not honoured, where, and why."""
    from lightwell.server.schemas import ollama

    known = _known_fields(
        {
            "/api/chat": ollama.OllamaChatRequest,
            "/api/generate": ollama.OllamaGenerateRequest,
            "/api/embed": ollama.OllamaEmbedRequest,
            "/api/embeddings": ollama.OllamaEmbeddingsRequest,
            "/api/show": ollama.OllamaShowRequest,
            "options": ollama.OllamaOptions,
            "a message": ollama.OllamaMessage,
            "a tool call": ollama.OllamaToolCall,
            "its function": ollama.OllamaFunction,
        }
    )
    return _rows({key: where for key, where in known.items() if key[1] != "honoured"})


def _known_fields(objects: dict[str, type[Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the objects in which a field is treated in a way, by the field and the way."""
    told: dict[tuple[str, str], list[str]] = {}
    for where, model in objects.items():
        for name in model.model_fields:
            told.setdefault((name, "honoured"), []).append(where)
        for name, why in model.IGNORED.items():
            told.setdefault((name, f"ignored: {why}"), []).append(where)
        for name, refused in model.REFUSED.items():
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in refused.neutral)
            but = f", but for {neutral}" if neutral else ""
            told.setdefault((name, f"refused{but}: {refused.why}"), []).append(where)
    return told


def _rows(told: dict[tuple[str, str], list[str]]) -> str:
    lines = ["| field | in | |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {', '.join(told[name, what])} | {what} |" for name, what in sorted(told))]
    )
