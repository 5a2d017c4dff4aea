"""The 2,000 requests of `tests.tools.recorder`: made from templates of every route, the same at every call.

Each request has a random number generator of its own, seeded with its group and number, so that a change of one group
leaves the others as they are. A text is sampled with a seed or at temperature 0. A quarter of the requests are invalid:
one field of a valid body is replaced, removed or misspelt (`spoiled`), fields contradict each other (`WRONG` of
`tests.tools.recorded_errors`), or the body is no JSON object.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.tools.recorded_errors import DIALECTS, WRONG

Body = dict[str, Any]
Draw = random.Random

SENTENCES = (
    "Once upon a time there was a little girl.",
    "The wolf said: let me come in!",
    "There were 3 bears, and they had 12 bowls.",
    "Où est le château ? 茨姫は眠っている。 🐺",
    "How is Bern?",
    'Say "no" \\ or\n\tyes.',
)
WEATHER = {
    "name": "get_weather",
    "description": "The weather now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Köln"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "bb"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
KEPT = ("seed", "do_sample")
"""Fields that `spoiled` leaves alone: without a seed an answer is different each time."""
REMOVED = object()


@dataclass(frozen=True)
class Request:
    """One request to one application."""

    site: str
    path: str
    content: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def posted(site: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Request:
    content_type = {"content-type": "application/json"}
    return Request(site, path, json.dumps(body).encode(), headers=content_type | (headers or {}))


def text(draw: Draw, most: int = 2) -> str:
    return " ".join(draw.choices(SENTENCES, k=draw.randint(1, most)))


def ids(draw: Draw, most: int = 12) -> list[int]:
    return [draw.randint(5, 90) for _ in range(draw.randint(2, most))]


def some(draw: Draw, fields: Body, share: float = 0.3) -> Body:
    """Return a random part of the fields; a function gives its value."""
    chosen = {name: value for name, value in fields.items() if draw.random() < share}
    return {name: value() if callable(value) else value for name, value in chosen.items()}


def sampling(draw: Draw) -> Body:
    """Return fields that every body that asks for a text has."""
    if draw.random() < 0.5:
        how: Body = {"temperature": 0}
    else:
        how = {"temperature": draw.choice([0.5, 1, 1.7]), "seed": draw.randint(-5, 2**40)}
        how |= some(draw, {"top_p": 0.8, "top_k": 20, "min_p": 0.05})
    return how | some(
        draw,
        {
            "repetition_penalty": 1.3,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "logit_bias": lambda: {str(token_id): draw.choice([-100, 3.5]) for token_id in ids(draw, 4)},
            "stop_token_ids": lambda: ids(draw, 5),
            "ignore_eos": True,
            "min_tokens": 3,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        },
        0.2,
    )


def attention(draw: Draw) -> Body:
    rows: Body = draw.choice([{"layers": "all"}, {"layers": [0], "heads": "0:2"}, {"pairs": [[1, 0], [0, 1]]}])
    return rows | some(draw, {"kind": "scores", "top_k": 3, "dtype": "float16", "encoding_format": "base64"})


def intervention(draw: Draw) -> Body:
    return draw.choice(
        [
            {"point": "blocks.0.attn.hook_z", "head": 1, "op": "zero"},
            {"point": "blocks.1.hook_resid_pre", "op": "scale", "value": 0.5, "positions": [-1]},
            {"point": "attn.hook_attn_scores", "layer": 0, "op": "temperature", "value": 2.0},
            {"point": "hook_mlp_out", "layer": [0, 1], "op": "mean"},
            {"point": "blocks.0.hook_resid_pre", "op": "patch", "positions": [1], "from": {"input": "The wolf"}},
            {"point": "hook_embed", "op": "add", "positions": [0], "times": 2.0, "from": {"input": "a"},
             "minus": {"input": "b"}},
        ]
    )  # fmt: skip


def constraint(draw: Draw) -> Body:
    """Return fields of OpenAI's routes that give the answer its form."""
    return draw.choice(
        [
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"response_format": {"type": "text"}},
            {"response_format": {"type": "regex", "value": "[a-c]{2,5}"}},
            {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
            {"guided_regex": "(yes|no){1,3}"},
            {"guided_choice": ["Bern", "Köln"]},
            {"guided_json": SCHEMA},
            {"guided_grammar": 'start: "a" | "b" start'},
            {"grammar": 'root ::= "x" [0-9]'},
            {"regex": "[xyz]{3}"},
            {"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
            {"ebnf": 'root ::= "left" | "right"'},
        ]
    )


def openai_text(draw: Draw) -> Body:
    """Return fields that the routes of completions and of chats share."""
    body = sampling(draw) | some(
        draw,
        {
            "n": 2,
            "stop": lambda: draw.choice(["e", ["a", "zz"], []]),
            "prompt_logprobs": lambda: draw.randint(0, 2),
            "return_token_ids": True,
            "attention": lambda: attention(draw) | some(draw, {"prompt": True}),
            "interventions": lambda: [intervention(draw)],
            "truncate_prompt_tokens": 6,
            "user": "u",
            "priority": 3,
            "cache_salt": "salt",
        },
        0.12,
    )
    if draw.random() < 0.4:
        body["stream"] = True
        options = {"include_usage": True, **some(draw, {"continuous_usage_stats": True})}
        body |= some(draw, {"stream_options": options}, 0.6)
    return body | (constraint(draw) if draw.random() < 0.2 else {})


def completion(draw: Draw) -> Body:
    prompt = draw.choice([text(draw), ids(draw), [text(draw), text(draw)], [ids(draw), ids(draw)]])
    more = {"echo": True, "logprobs": draw.randint(0, 3), "add_special_tokens": False, "best_of": None}
    return {"prompt": prompt, "max_tokens": draw.randint(1, 10), **openai_text(draw), **some(draw, more, 0.25)}


def two_texts(draw: Draw) -> Body:
    """Return a completion of an encoder-decoder."""
    body = completion(draw) | {"prompt": text(draw, 1)[:40], "max_tokens": 5}
    for name in ("interventions", "truncate_prompt_tokens"):
        body.pop(name, None)
    if "attention" in body:
        body["attention"] = {"part": draw.choice(["cross", "decoder"])}
    return body | some(draw, {"decoder_input": lambda: draw.choice(["The", [2, 7, 9]])})


def turns(draw: Draw) -> list[Body]:
    """Return messages of a chat."""
    messages: list[Body] = []
    if draw.random() < 0.3:
        messages.append({"role": draw.choice(["system", "developer"]), "content": "Be brief."})
    messages.append({"role": "user", "content": text(draw, 1)})
    if draw.random() < 0.3:
        answer = {"role": "assistant", "content": "Yes.", **some(draw, {"reasoning_content": "Hm."})}
        parts = [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]
        messages += [answer, {"role": "user", "content": parts}]
    return messages


def called(draw: Draw) -> list[Body]:
    """Return messages in which a tool was called."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    return [
        {"role": "user", "content": text(draw, 1)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3 degrees"},
    ]


def tools(draw: Draw) -> Body:
    named = {"type": "function", "function": {"name": "get_time"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    choice = draw.choice(["none", "auto", "required", "required", named, allowed])
    given = {"tools": [{"type": "function", "function": function} for function in (WEATHER, TIME)]}
    return given | {"tool_choice": choice} | some(draw, {"parallel_tool_calls": draw.random() < 0.5})


def chat(draw: Draw) -> Body:
    body = {"messages": turns(draw), "max_tokens": draw.randint(2, 10), **openai_text(draw)}
    body.pop("truncate_prompt_tokens", None)
    if draw.random() < 0.2:
        body |= {"logprobs": True, **some(draw, {"top_logprobs": 2})}
    if draw.random() < 0.1:
        body["messages"].append({"role": "assistant", "content": "It is"})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if draw.random() < 0.1 and not body.get("stream") and "n" not in body:
        body["explain"] = draw.choice([True, {"by": "head"}, {"by": "layer", "verify": 1}])
        body = {name: value for name, value in body.items() if name not in ("interventions", "attention")}
    return body | some(draw, {"chat_template_kwargs": {"enable_thinking": draw.random() < 0.5}}, 0.15)


def scripted_chat(draw: Draw) -> Body:
    """Return a chat for an engine without a network, which explains nothing."""
    return {name: value for name, value in chat(draw).items() if name != "explain"}


def chat_with_tools(draw: Draw) -> Body:
    plain = {"messages": draw.choice([turns, called])(draw), "max_tokens": draw.choice([8, 60]), **sampling(draw)}
    kept = some(draw, {"stream": True, "logprobs": True, "return_token_ids": True, "n": 2}, 0.25)
    return plain | tools(draw) | kept


def thinking(draw: Draw) -> Body:
    budget = draw.choice(["thinking_budget", "thinking_token_budget"])
    body = {"messages": turns(draw), "max_tokens": 30, budget: draw.choice([-1, 0, 4, 9]), **sampling(draw)}
    body |= some(draw, {"stream": True, "include_reasoning": False, "logprobs": True, "return_token_ids": True})
    return body | some(draw, {"guided_regex": "[a-z]{3}"}, 0.2)


def responses(draw: Draw) -> Body:
    said: list[Body] = [{"role": "user", "content": text(draw, 1)}]
    if draw.random() < 0.3:
        said += [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"type": "function_call", "call_id": "c1", "name": "get_time", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "7"}]},
        ]
    body = {"input": draw.choice([text(draw, 1), said]), "max_output_tokens": draw.randint(2, 12), **sampling(draw)}
    with_logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body |= draw.choice([{}, {}, with_logprobs, {"include": ["reasoning.encrypted_content"]}])
    form = draw.choice([{"type": "text"}, {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}])
    body |= some(
        draw,
        {
            "stream": True,
            "instructions": "Be brief.",
            "text": {"format": form},
            "reasoning": {"effort": "none"},
            "truncation": "auto",
            "metadata": {"a": "b"},
            "user": "u",
            "parallel_tool_calls": False,
            "stop": "e",
        },
        0.25,
    )
    if draw.random() < 0.3:
        named = {"type": "function", "name": "get_weather"}
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
        body["tools"] = [{"type": "function", **function} for function in (WEATHER, TIME)]
        body |= {"tool_choice": draw.choice(["auto", "required", "none", named, allowed]), "max_output_tokens": 40}
        body.pop("text", None)
    return body


def anthropic_turns(draw: Draw) -> list[Body]:
    messages: list[Body] = [{"role": "user", "content": text(draw, 1)}]
    if draw.random() < 0.4:
        use = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "7"}]}
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
        messages.append({"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, use]})
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "And?"}]})
    elif draw.random() < 0.2:
        messages.append({"role": "assistant", "content": "It is"})
    return messages


def anthropic_asked(draw: Draw) -> Body:
    """Return the fields that messages and the count of their tokens share."""
    body: Body = {"messages": anthropic_turns(draw)}
    body |= some(draw, {"system": lambda: draw.choice(["Be brief.", [{"type": "text", "text": "Be brief."}]])})
    if draw.random() < 0.35:
        body["tools"] = [
            {"name": tool["name"], "description": "d", "input_schema": tool["parameters"]} for tool in (WEATHER, TIME)
        ]
        choice = draw.choice(
            [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_time"}, {"type": "none"}]
        )
        if body["messages"][-1]["role"] == "user":
            body["tool_choice"] = choice | some(draw, {"disable_parallel_tool_use": True})
    return body


def messages(draw: Draw) -> Body:
    how = sampling(draw)
    body = anthropic_asked(draw) | {"max_tokens": draw.choice([4, 8, 40]), **how}
    body |= some(draw, {"stream": True, "stop_sequences": ["e", "zz"], "metadata": {"user_id": "u"}})
    if "tools" not in body:
        form = {"type": "json_schema", "schema": SCHEMA}
        body |= some(draw, {"output_config": {"format": form}, "thinking": {"type": "disabled"}}, 0.15)
    return body


def ollama_options(draw: Draw) -> Body:
    how = sampling(draw)
    kept = ("temperature", "seed", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
    options = {name: how[name] for name in kept if name in how} | {"num_predict": draw.randint(1, 9)}
    body: Body = {"options": options | some(draw, {"repeat_penalty": 1.2, "stop": ["e"], "num_ctx": 512})}
    body |= some(draw, {"stream": False}, 0.6)
    body |= some(draw, {"logprobs": True, "keep_alive": "5m", "attention": lambda: attention(draw)}, 0.15)
    return body | some(draw, {"format": lambda: draw.choice([SCHEMA, "", SCHEMA])}, 0.15)


def ollama_chat(draw: Draw) -> Body:
    body = {"model": "org/tiny", "messages": [{"role": "user", "content": text(draw, 1)}], **ollama_options(draw)}
    if draw.random() < 0.3:
        call = {"function": {"name": "get_time", "arguments": {}}}
        body["messages"] += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "7", "tool_name": "get_time"},
        ]
    if draw.random() < 0.3:
        body.pop("format", None)
        body["tools"] = [{"type": "function", "function": function} for function in (WEATHER, TIME)]
    return body | some(draw, {"think": False}, 0.2)


def ollama_generate(draw: Draw) -> Body:
    raw = draw.random() < 0.3
    more = {"raw": True} if raw else some(draw, {"system": "Be brief.", "think": False})
    return {"model": "org/tiny", "prompt": text(draw), **ollama_options(draw), **more}


def tgi(draw: Draw) -> Body:
    how = sampling(draw)
    kept = ("seed", "top_p", "top_k", "repetition_penalty", "frequency_penalty")
    parameters = {name: how[name] for name in kept if name in how} | {"max_new_tokens": draw.randint(1, 9)}
    if "seed" in how:
        parameters |= {"do_sample": True, "temperature": how["temperature"]}
    more: Body = {"stop": ["e"], "return_full_text": True, "details": True, "top_n_tokens": 2, "truncate": 4}
    more["grammar"] = draw.choice([{"type": "regex", "value": "[ab]{3}"}, {"type": "json", "value": SCHEMA}])
    return {"inputs": text(draw), "parameters": parameters | some(draw, more, 0.25)}


def tgi_whole(draw: Draw) -> Body:
    body = tgi(draw)
    body["parameters"] |= some(draw, {"details": True, "decoder_input_details": True})
    return body


def embedding(draw: Draw) -> Body:
    inputs = draw.choice([text(draw), ids(draw), [text(draw, 1), text(draw, 1)], [ids(draw), ids(draw)]])
    more = {"encoding_format": "base64", "dimensions": 6, "layer": 0, "normalize": False, "truncate": True, "user": "u"}
    more |= {"pooling": draw.choice(["mean", "last", "cls", "none"]), "truncate_prompt_tokens": 5, "priority": 1}
    return {"input": inputs, **some(draw, more, 0.2)}


def prompted_embedding(draw: Draw) -> Body:
    return embedding(draw) | {"input": text(draw, 1), "prompt_name": draw.choice(["query", "document"])}


def ollama_embed(draw: Draw) -> Body:
    return {"model": "org/tiny", "input": draw.choice([text(draw), [text(draw), "a"]]), **some(draw, {"dimensions": 4})}


def tei(draw: Draw) -> Body:
    more = {"truncate": True, "truncation_direction": draw.choice(["Left", "right"]), "normalize": False}
    return {"inputs": draw.choice([text(draw), [text(draw), "a"], ids(draw)]), **some(draw, more)}


def tei_all(draw: Draw) -> Body:
    return {name: value for name, value in tei(draw).items() if name != "normalize"}


def similarity(draw: Draw) -> Body:
    texts = {"source_sentence": text(draw), "sentences": [text(draw) for _ in range(3)]}
    return {"inputs": texts, **some(draw, {"parameters": {"truncate": True}})}


def rerank(draw: Draw) -> Body:
    documents: list[Any] = [text(draw) for _ in range(draw.randint(1, 4))]
    if draw.random() < 0.3:
        documents = [{"text": document} for document in documents]
    more = {"top_n": 2, "return_documents": True, "truncate": True, "max_tokens_per_doc": 9, "use_activation": False}
    return {"query": text(draw, 1), "documents": documents, **some(draw, more)}


def tei_rerank(draw: Draw) -> Body:
    more = {"raw_scores": True, "return_text": True, "truncate": True, "truncation_direction": "left"}
    return {"query": text(draw, 1), "texts": [text(draw) for _ in range(3)], **some(draw, more)}


def score(draw: Draw) -> Body:
    first, second = draw.choice([("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
    more = {"use_activation": False, "truncate": True, "truncate_prompt_tokens": 20}
    return {first: text(draw, 1), second: [text(draw), text(draw, 1)], **some(draw, more)}


def classify(draw: Draw) -> Body:
    more = {"use_activation": False, "truncate": True, "add_special_tokens": False, "explain": True}
    return {"input": draw.choice([text(draw), [text(draw), "a"], ids(draw)]), **some(draw, more, 0.25)}


def predict(draw: Draw) -> Body:
    inputs = draw.choice([text(draw), [[text(draw)], ["a", "b"]], [[text(draw, 1)], [text(draw, 1)]]])
    parameters = {"parameters": {"function_to_apply": draw.choice(["sigmoid", "none"]), "top_k": 2}}
    return {"inputs": inputs, **some(draw, {"raw_scores": True, "truncate": True, **parameters})}


def decisions(draw: Draw) -> Body:
    choices = [{"value": "x", "description": "d"}, {"value": True}]
    questions = [
        {"type": "predicate", "instructions": text(draw, 1), "name": "first"},
        {"type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}], "choices": choices},
        {"type": "score", "instructions": "How cold?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    said = [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]}]
    asked = draw.sample(questions, draw.randint(1, 3))
    return {"input": draw.choice([text(draw), said]), "questions": asked, **some(draw, {"explain": True}, 0.2)}


def systemone(draw: Draw) -> Body:
    questions = {
        "cold": {"type": "noul", "instructions": "Is it cold?", "criteria": {"true": "below 5", "false": "else"}},
        "kind": {"type": "choice", "criteria": {"a": "first", "b": {"x": 1}}},
        "rank": {"type": "score", "criteria": ["low", "mid", "high"]},
    }
    asked = dict(draw.sample(sorted(questions.items()), draw.randint(1, 3)))
    return {"state": draw.choice([text(draw), {"a": 1}]), "questions": asked, **some(draw, {"instructions": "Judge."})}


def tokenize(draw: Draw) -> Body:
    told = some(draw, {"return_token_strs": True, "return_offsets": True})
    if draw.random() < 0.5:
        return {"prompt": text(draw), **told, **some(draw, {"add_special_tokens": False})}
    tool = {"tools": [{"type": "function", "function": TIME}]}
    return {"messages": turns(draw), **told, **some(draw, {**tool, "add_generation_prompt": False})}


def detokenize(draw: Draw) -> Body:
    return {"tokens": ids(draw, 20), **some(draw, {"skip_special_tokens": False})}


def count_tokens(draw: Draw) -> Body:
    return anthropic_asked(draw)


def read(draw: Draw) -> Body:
    """Return the input of an inspection request."""
    body = {"input": draw.choice([text(draw, 1), ids(draw)])}
    more = {"completion": "Yes.", "interventions": [intervention(draw)], "encoding_format": "base64"}
    return body | some(draw, more, 0.15)


def inspected(*drawn: Callable[[Draw], Body]) -> Callable[[Draw], Body]:
    """Return a maker of inspection requests with fields that one of these functions draws."""
    return lambda draw: read(draw) | draw.choice(drawn)(draw)


ATTENTION = inspected(
    attention,
    lambda draw: {"layers": 0, "reduce": "mean", "query_positions": "-2:", "dtype": "uint8"},
    lambda draw: {"key_positions": [0, 1], "orientation": "columns"},
    lambda draw: {"resize": 4, "layers": [1]},
)
TRACE = inspected(
    lambda draw: {"points": ["blocks.0.hook_resid_pre", "logits"], "positions": [-1]},
    lambda draw: {"points": ["attn.hook_pattern", "attn.hook_z"], "layers": 1, "heads": [0], "dtype": "float16"},
    lambda draw: {"points": draw.sample(["hook_embed", "ln_final.hook_out", "blocks.1.hook_mlp_out"], 2)},
)
NEXT = inspected(
    lambda draw: {"temperatures": [0, 0.5, 2], "top_k": 3},
    lambda draw: {"num_tokens": 3, "top_k": 2},
    lambda draw: {"position": -1, "full": True, "encoding_format": "base64"},
    lambda draw: {"explain": {"by": "word", "versus": "a"}, "top_k": 1},
)
LENS = inspected(lambda draw: {"top_k": 2, "positions": [-1], **some(draw, {"target": 9, "layers": [0, 1]})})
EXPLAIN = inspected(lambda draw: {"layer": draw.randint(0, 1), "head": draw.randint(0, 3), "query_position": -1})
CONTRIBUTIONS = inspected(
    lambda draw: {"layers": 0, "heads": [0], "query_positions": [-1], "vectors": True},
    lambda draw: {"target": 9, **some(draw, {"versus": 12}), "query_positions": [-1]},
    lambda draw: {"vectors": True, "sum_over": ["key"], "query_positions": [-1]},
)
TRAJECTORY = inspected(lambda draw: some(draw, {"positions": [-1], "compare_positions": [0, 1]}))
ROLLOUT = inspected(lambda draw: {"method": draw.choice(["rollout", "flow"]), "query_positions": [-1]})
GEOMETRY = inspected(lambda draw: {"point": "hook_resid_post", "layer": 0, **some(draw, {"num_strongest": 3})})


def heads(draw: Draw) -> Body:
    if draw.random() < 0.3:
        return {"repeat_length": 6, "num_sequences": 2}
    return read(draw) | some(draw, {"layers": [0], "heads": [1, 2]})


def circuits(draw: Draw) -> Body:
    return some(draw, {"layers": "all", "heads": [0, 1], "compose": True, "encoding_format": "base64"}, 0.5)


VALID: tuple[tuple[int, str, str, Callable[[Draw], Body]], ...] = (
    (100, "chat", "/v1/completions", completion),
    (25, "exact", "/v1/completions", completion),
    (30, "bart", "/v1/completions", two_texts),
    (20, "writer", "/v1/completions", completion),
    (95, "chat", "/v1/chat/completions", chat),
    (30, "exact", "/v1/chat/completions", chat),
    (60, "chat", "/v1/chat/completions", chat_with_tools),
    (40, "caller", "/v1/chat/completions", chat_with_tools),
    (20, "writer", "/v1/chat/completions", scripted_chat),
    (40, "thinker", "/v1/chat/completions", thinking),
    (60, "chat", "/v1/responses", responses),
    (25, "caller", "/v1/responses", responses),
    (20, "writer", "/v1/responses", responses),
    (60, "chat", "/v1/messages", messages),
    (25, "caller", "/v1/messages", messages),
    (20, "writer", "/v1/messages", messages),
    (20, "chat", "/v1/messages/count_tokens", count_tokens),
    (45, "chat", "/api/chat", ollama_chat),
    (20, "caller", "/api/chat", ollama_chat),
    (40, "chat", "/api/generate", ollama_generate),
    (10, "writer", "/api/generate", ollama_generate),
    (25, "exact", "/generate", tgi_whole),
    (15, "exact", "/generate_stream", tgi),
    (8, "bare", "/", tgi_whole),
    (25, "chat", "/v1/embeddings", embedding),
    (25, "bert", "/v1/embeddings", embedding),
    (10, "embed", "/v1/embeddings", prompted_embedding),
    (8, "embed", "/api/embed", ollama_embed),
    (12, "embed", "/embed", tei),
    (8, "bert", "/embed_all", tei_all),
    (8, "bert", "/embed_sparse", tei_all),
    (8, "embed", "/similarity", similarity),
    (6, "embed", "/", tei),
    (20, "ranks", "/v1/rerank", rerank),
    (8, "ranks", "/v2/rerank", rerank),
    (10, "ranks", "/rerank", tei_rerank),
    (6, "embed", "/rerank", rerank),
    (12, "ranks", "/v1/score", score),
    (6, "embed", "/score", score),
    (14, "labels", "/v1/classify", classify),
    (6, "labels", "/classify", classify),
    (12, "labels", "/predict", predict),
    (20, "exact", "/v1/decisions", decisions),
    (14, "chat", "/v1/systemone", systemone),
    (20, "chat", "/tokenize", tokenize),
    (10, "bert", "/tokenize", tokenize),
    (12, "chat", "/detokenize", detokenize),
    (30, "exact", "/v1/attention", ATTENTION),
    (10, "chat", "/v1/attention", ATTENTION),
    (20, "exact", "/v1/trace", TRACE),
    (20, "exact", "/v1/next", NEXT),
    (12, "exact", "/v1/lens", LENS),
    (10, "exact", "/v1/explain", EXPLAIN),
    (16, "exact", "/v1/contributions", CONTRIBUTIONS),
    (8, "exact", "/v1/trajectory", TRAJECTORY),
    (10, "exact", "/v1/heads", heads),
    (10, "exact", "/v1/rollout", ROLLOUT),
    (8, "exact", "/v1/geometry", GEOMETRY),
    (5, "exact", "/v1/circuits", circuits),
)
"""Groups of valid requests: their number, the application, the path and the maker of bodies."""
SEEN = (
    "/health", "/health/live", "/health/ready", "/version", "/api/version", "/v1/models", "/v1/models/org/tiny",
    "/v1/models/other", "/v1/capabilities", "/api/tags", "/api/ps", "/info", "/v1/models/org/tiny/parameters",
    "/v1/models/org/tiny/weights", "/v1/models/org/tiny/weights/blocks.0.attn.W_Q?head=0&rows=0:3",
    "/v1/models/org/tiny/weights/W_E?rows=0:2&columns=0:4", "/v1/models/org/tiny/weights/nothing",
    "/v1/models/org/tiny/geometry?matrix=W_E&pairs=8&seed=1", "/v1/models/org/tiny/geometry?matrix=x&pairs=-1",
    "/nowhere", "/v1/chat/completions",
)  # fmt: skip
"""Paths that are read with GET, of three applications."""


def paths_of(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside an object, but for those that keep an answer the same each time."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        if key not in KEPT:
            yield (*above, key)
            yield from paths_of(inner, (*above, key))


def wrong_values(value: Any) -> list[Any]:
    """Return values that a field with this value hardly accepts."""
    if isinstance(value, bool):
        return ["true", 1, [], None]
    if isinstance(value, int | float):
        return ["7", -7, 0, 10**10, 2.5, True, None, [1], {}]
    if isinstance(value, str):
        return [5, "", None, ["x"], {"a": 1}, "\ud800", "x" * 1100, True]
    if isinstance(value, list):
        return ["x", [], {}, [None], [{}], [[]], 7, value * 20]
    return ["x", [], {}, 7, None]


def spoiled(draw: Draw, body: Body) -> Body:
    """Return the body with one field replaced, removed, misspelt or added."""
    path = draw.choice(list(paths_of(body)))
    copy: Body = json.loads(json.dumps(body))
    holder: Any = copy
    for key in path[:-1]:
        holder = holder[key]
    last, kind = path[-1], draw.random()
    if kind < 0.65:
        holder[last] = draw.choice(wrong_values(holder[last]))
    elif kind < 0.8:
        del holder[last]
    elif isinstance(holder, dict):
        holder[draw.choice([f"{last}s", "unknown_field", "x" * 300])] = holder.pop(last) if kind < 0.9 else 1
    else:
        holder.append(draw.choice([None, {}, "x", -1]))
    return copy


def group(name: str, count: int, make: Callable[[Draw, int], Request]) -> list[Request]:
    """Return `count` requests, each made with a generator of its own."""
    return [make(random.Random(f"{name} {number}"), number) for number in range(count)]


def valid_requests() -> list[Request]:
    """Return the requests of `VALID`."""

    def body_of(site: str, path: str, make: Callable[[Draw], Body]) -> Callable[[Draw, int], Request]:
        return lambda draw, _: posted(site, path, make(draw))

    return [
        request
        for count, site, path, make in VALID
        for request in group(f"{site} {path} {make.__name__}", count, body_of(site, path, make))
    ]


def spoiled_requests(count: int) -> list[Request]:
    """Return bodies of all groups of `VALID` in turn, each with one wrong field."""

    def make(draw: Draw, number: int) -> Request:
        _, site, path, body = VALID[number % len(VALID)]
        return posted(site, path, spoiled(draw, body(draw)))

    return group("spoiled", count, make)


def wrong_requests() -> list[Request]:
    """Return the requests of `WRONG`: fields that contradict each other, or the model."""
    return [posted(site, path, base | change) for site, path, base, *changes in WRONG for change in changes]


def unreadable_requests() -> list[Request]:
    """Return bodies that are no JSON objects, unknown models, wrong keys and wrong methods, for each dialect."""
    made = []
    json_header = {"content-type": "application/json"}
    for path in DIALECTS:
        for content in (b"", b"[]", b'{"a": 1', b'{"a": NaN}'):
            made.append(Request("writer", path, content, headers=json_header))
        made.append(posted("writer", path, {**DIALECTS[path], "model": "other"}))
        made.append(posted("guarded", path, DIALECTS[path]))
        made.append(posted("guarded", path, DIALECTS[path], {"authorization": "Bearer wrong"}))
        made.append(posted("guarded", path, DIALECTS[path], {"x-api-key": "secret"}))
        made.append(Request("writer", path, method="PUT"))
    return made


def all_requests(total: int = 2000) -> list[Request]:
    """Return the requests: the valid ones, those that read what there is, and the invalid ones."""
    seen = [Request(site, path, method="GET") for site in ("chat", "embed", "bart") for path in SEEN]
    made = [*valid_requests(), *seen, *wrong_requests(), *unreadable_requests()]
    made += spoiled_requests(total - len(made))
    random.Random(0).shuffle(made)
    return made
