"""Bodies of requests for text of `tests.tools.recorder`, in every dialect. Each function draws one."""

import random
from typing import Any

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


def text(draw: Draw, most: int = 2) -> str:
    return " ".join(draw.choices(SENTENCES, k=draw.randint(1, most)))


def ids(draw: Draw, most: int = 12) -> list[int]:
    return [draw.randint(5, 90) for _ in range(draw.randint(2, most))]


def some(draw: Draw, fields: Body, share: float = 0.3) -> Body:
    """Return a random part of the fields; a function returns its value."""
    chosen = {name: value for name, value in fields.items() if draw.random() < share}
    return {name: value() if callable(value) else value for name, value in chosen.items()}


def sampling(draw: Draw) -> Body:
    """Return fields of every body that requests a text."""
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
    """Return fields of OpenAI's routes that set the answer's form."""
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
    """Return a chat for an engine without a network, which has no explanations."""
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
