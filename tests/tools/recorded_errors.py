"""Requests of `tests.tools.recorder` that are refused: fields that contradict each other, or the model."""

from typing import Any

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "f"}
COMPLETION = {"prompt": "Hi there", "max_tokens": 2}
CHAT = {"messages": USER, "max_tokens": 2}
RESPONSE = {"input": "Hi", "max_output_tokens": 2}
MESSAGE = {"messages": USER, "max_tokens": 2}
GENERATE = {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}}
OLLAMA = {"messages": USER, "stream": False, "options": {"num_predict": 2}}
READ = {"input": "Hi there"}
LONG = "Once upon a time. " * 400

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/api/chat": OLLAMA,
    "/generate": {"inputs": "Hi", "parameters": {"max_new_tokens": 2}},
    "/v1/embeddings": READ,
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/systemone": {"state": "s", "questions": {"q": {"type": "noul", "instructions": "y"}}},
}
"""A path of each shape of errors, with a valid body."""


def _tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def _changed(**fields: Any) -> dict[str, Any]:
    """Return an intervention with these fields."""
    return {"interventions": [{"point": "blocks.0.attn.hook_z", "op": "zero", **fields}]}


_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
_TEXTS: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True}}, {"logit_bias": {"x": 1}}, {"logit_bias": {"5": 200}},
    {"logit_bias": {"99999": 1}}, {"stop": [""]}, {"stop": ["a"] * 20}, {"stop_token_ids": [99999]}, {"top_p": 0},
    {"temperature": -1}, {"n": 1000}, {"best_of": 3}, {"seed": 2**64}, {"timeout": 0}, {"priority": -5},
    {"cache_salt": ""}, {"mirostat": 2}, {"min_keep": 3}, {"n_predict": 5}, {"use_beam_search": True},
    {"bad_words": ["a"]}, {"lora_path": "x"}, {"truncate_prompt_tokens": 0},
    {"attention": {"pairs": [[0, 0]], "layers": 0}}, {"attention": {"pairs": [[0, 0], [0, 0]]}},
    {"attention": {"layers": 9}}, {"attention": {"kind": "scores", "dtype": "uint8"}}, {"attention": {"part": "cross"}},
    {"response_format": {"type": "json_schema"}}, {"response_format": {"type": "regex"}},
    {"response_format": {"type": "regex", "value": "("}}, {"response_format": {"type": "text", "value": "x"}},
    {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, {"guided_regex": "(", "max_tokens": 4},
    {"guided_regex": "a", "guided_choice": ["b"]}, {"guided_json": {"type": "nothing"}}, {"guided_json": "{"},
    {"guided_grammar": "start: nothing"}, {"guided_choice": []}, {"structural_tag": {"type": "x"}},
    {"json_schema": {"type": "string", "pattern": "(?=a)"}}, _changed(value=1), _changed(op="scale"),
    _changed(op="scale", value=1, **{"from": {"input": "a"}}), _changed(op="temperature", value=-1),
    _changed(op="temperature", value=1), _changed(op="mean", value=1), _changed(point="nothing"), _changed(layer=1),
    _changed(head=9), _changed(point="attn.hook_z"), _changed(point="hook_embed", layer=0), _changed(positions=[99]),
    _changed(times=2), _changed(op="add", value=[[1, 2], [3]]), _changed(op="add", value={"data": "!", "shape": [1]}),
    _changed(op="patch", **{"from": {"input": ""}}), _changed(op="patch", **{"from": {"input": "a", "layer": 9}}),
)  # fmt: skip
_SCORED: tuple[dict[str, Any], ...] = (
    {"top_n": -1}, {"documents": []}, {"documents": [""]}, {"query": ""}, {"query": LONG}, {"documents": [LONG]},
    {"documents": [{"text": 5}]}, {"prompt_name": "nothing"}, {"max_tokens_per_doc": 0}, {"truncate_prompt_tokens": 1},
    {"truncation_side": "middle"}, {"rank_fields": ["x"]}, {"explain": {"by": "nothing"}},
)  # fmt: skip
_INSPECTED: tuple[dict[str, Any], ...] = (
    {"input": ""}, {"input": []}, {"input": [99999]}, {"input": LONG}, {"input": USER}, {"decoder_input": "a"},
    {"completion": ["a", "b"]}, {"layers": 9}, {"layers": [0, 0]}, {"layers": []}, {"layers": "x:"}, {"heads": "5:5"},
    {"heads": [7]},
)  # fmt: skip

WRONG: tuple[tuple[Any, ...], ...] = (
    ("chat", "/v1/completions", COMPLETION, *_TEXTS),
    ("chat", "/v1/chat/completions", CHAT, *_TEXTS),
    (
        "chat", "/v1/completions", COMPLETION,
        {"max_tokens": 0}, {"prompt": ""}, {"prompt": []}, {"prompt": [99999]}, {"prompt": LONG},
        {"prompt": LONG, "truncate": True}, {"decoder_input": "a"}, {"suffix": "x"}, {"thinking_budget": 4},
        {"prompt": ["a", 5]}, {"prompt": [[1], "a"]}, {"echo": "yes"},
    ),
    (
        "chat", "/v1/chat/completions", CHAT,
        {"messages": []}, {"top_logprobs": 2}, {"max_completion_tokens": 3}, {"functions": [{}]},
        {"function_call": "f"}, {"tool_choice": "required"}, {"tools": [TOOL, TOOL]},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [{"type": "retrieval"}]}, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        {"messages": [{"role": "user", "content": "a", "tool_calls": [_tool_call("{}")]}]},
        {"messages": [*USER, {"role": "assistant", "tool_calls": [_tool_call("[")]}]},
        {"messages": [*USER, {"role": "assistant", "tool_calls": [_tool_call("[]")]}]},
        {"messages": [{"role": "narrator", "content": "a"}]}, {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": True}, {"verbosity": "high"},
        {"chat_template_kwargs": {"messages": []}}, {"explain": True, "stream": True}, {"explain": True, "n": 2},
        {"reasoning_effort": "high"}, {"thinking_budget": 4}, {"modalities": ["audio"]}, {"documents": ["a"]},
        {"messages": [{"role": "user", "content": LONG}]},
        {"tools": [TOOL], "guided_regex": "a", "tool_choice": "required"},
    ),
    ("bare", "/v1/chat/completions", CHAT, {}),
    ("embed", "/v1/chat/completions", CHAT, {}),
    (
        "chat", "/v1/responses", RESPONSE,
        {"input": []}, {"input": ""}, {"top_logprobs": 2}, {"previous_response_id": "x"}, {"background": True},
        {"n": 2}, {"max_tokens": 5}, {"logit_bias": {"x": 1}}, {"temperature": 200}, {"stop": [""]},
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        {"text": {"format": {"type": "text", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}},
        {"reasoning": {"effort": "huge"}}, {"reasoning": {"summary": "detailed"}}, {"reasoning": {"effort": "high"}},
        {"tools": [{"type": "web_search"}]}, {"tools": [{"type": "file_search"}]}, {"tools": [FLAT, FLAT]},
        {"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, {"tool_choice": "required"},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"include": ["nothing"]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]},
        {"input": [{"type": "custom", "x": 1}]}, {"attention": {"layers": 9}}, _changed(point="nothing"),
        {"input": LONG}, {"input": LONG, "truncation": "auto"}, {"thinking_budget": 4}, {"metadata": {"a": 5}},
    ),
    (
        "chat", "/v1/messages", MESSAGE,
        {"messages": []}, {"max_tokens": 0}, {"container": "x"}, {"mcp_servers": [{}]}, {"n": 2},
        {"stop_sequences": [""]}, {"temperature": 200}, {"logit_bias": {"x": 1}}, {"attention": {"layers": 9}},
        _changed(point="nothing"), {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool"}},
        {"tools": [{"name": "f", "input_schema": {"type": "string"}}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "g"}},
        {"messages": [{"role": "tool", "content": "a"}]}, {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [*USER, {"role": "assistant", "content": [_USE]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
        {"output_config": {"effort": "huge"}}, {"system": [{"type": "image"}]},
    ),
    (
        "chat", "/api/chat", OLLAMA,
        {"messages": []}, {"think": "high"}, {"think": True}, {"top_logprobs": 2}, {"format": "xml"},
        {"format": {"type": "nothing"}}, {"options": {"num_predict": 0}}, {"options": {"temperature": -1}},
        {"options": {"tfs_z": 0.5}}, {"options": {"stop": [""]}}, {"options": {"num_ctx": 99999}}, {"template": "x"},
        {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, {"tools": [{"type": "function"}]},
        {"messages": [{"role": "tool", "content": "x"}]}, {"attention": {"layers": 9}}, _changed(point="nothing"),
        {"messages": [{"role": "user", "content": LONG}], "truncate": False}, {"shift": True},
    ),
    (
        "chat", "/api/generate", GENERATE,
        {"suffix": "x"}, {"images": ["x"]}, {"context": [1]}, {"raw": True, "system": "x"}, {"prompt": LONG},
        {"think": True}, {"options": {"seed": 2**64}}, {"keep_alive": [], "prompt": ""}, {"width": 5},
    ),
    ("chat", "/api/show", {"model": "org/tiny"}, {}, {"model": "other"}, {"model": 5}, {"name": "org/tiny"}),
    (
        "exact", "/generate", {"inputs": "Hi"},
        *({"parameters": parameters} for parameters in (
            {"best_of": 2}, {"watermark": True}, {"typical_p": 0.5}, {"adapter_id": "x"}, {"temperature": -1},
            {"truncate": 0}, {"grammar": {"type": "regex", "value": "("}}, {"grammar": {"type": "json", "value": "x"}},
            {"stop": [""]}, {"max_new_tokens": 0}, {"top_n_tokens": 50},
        )),
        {"inputs": ""}, {"inputs": LONG}, {"stream": True, "parameters": {"decoder_input_details": True}},
    ),
    (
        "embed", "/v1/embeddings", READ,
        {"input": ""}, {"input": []}, {"input": [99999]}, {"input": LONG}, {"prompt_name": "nothing"}, {"layer": 9},
        {"dimensions": 999}, {"pooling": "max"}, {"messages": USER}, {"embd_normalize": 1}, {"embed_dtype": "int8"},
        {"truncate_prompt_tokens": 0}, {"encoding_format": "hex"}, {"input": "a", "prompt_name": "query", "layer": 0},
    ),
    ("ranks", "/v1/rerank", {"query": "a", "documents": ["b"]}, *_SCORED),
    ("embed", "/v1/rerank", {"query": "a", "documents": ["b"]}, *_SCORED[6:]),
    ("labels", "/v1/rerank", {"query": "a", "documents": ["b"]}, {}),
    ("chat", "/v1/rerank", {"query": "a", "documents": ["b"]}, {}),
    (
        "ranks", "/v1/score", {},
        {"text_1": "a"}, {"text_1": "a", "text_2": "b", "queries": "c"}, {"text_1": ["a", "b"], "text_2": ["c"] * 3},
        {"items": ["a"]}, {"text_1": "", "text_2": "b"},
    ),
    ("labels", "/predict", {"inputs": "a"}, {"inputs": []}, {"inputs": [["a", "b", "c"]]},
     {"parameters": {"top_k": 0}}),
    ("labels", "/v1/classify", {"input": "a"}, {"input": ""}, {"input": LONG}, {"messages": USER},
     {"explain": {"by": "x"}}),
    ("chat", "/v1/classify", {"input": "a"}, {}),
    ("exact", "/v1/attention", READ, *_INSPECTED, {"top_k": 2, "resize": 3}, {"top_k": 2, "orientation": "columns"},
     {"resize": 3, "kind": "scores"}, {"query_positions": [99]}, {"part": "cross"}),
    ("exact", "/v1/trace", {**READ, "points": ["hook_embed"]}, *_INSPECTED[:8], {"points": []}, {"points": ["nothing"]},
     {"points": ["hook_embed", "hook_embed"]}, {"heads": [0]}, {"positions": [99]}),
    ("exact", "/v1/next", READ, *_INSPECTED[:7], {"temperatures": []}, {"position": 99},
     {"num_tokens": 5, "full": True},
     {"top_k": 0}, {"explain": {"versus": "nothing at all"}}),
    ("exact", "/v1/lens", READ, *_INSPECTED[:8], {"target": "two words here"}, {"target": 99999}),
    ("exact", "/v1/explain", {**READ, "layer": 0, "head": 0}, {"layer": 9}, {"head": 9}, {"query_position": 9999}),
    ("exact", "/v1/contributions", READ, {"sum_over": ["key"]}, {"versus": 5}, {"target": 99999},
     {"vectors": True, "target": 5}),
    ("exact", "/v1/heads", {}, {}, {"completion": "a"}, {"repeat_length": 5, "input": "a"}, {"repeat_length": 1}),
    ("exact", "/v1/rollout", READ, {"heads": [9]}, {"method": "x"}, {"layers": [1]}),
    ("exact", "/v1/geometry", {**READ, "point": "hook_embed"}, {"layer": 0}, {"heads": 0}, {"point": "x"},
     {"input": "a"}),
    ("bert", "/v1/next", READ, {}),
    ("bert", "/v1/completions", COMPLETION, {}),
    ("bart", "/v1/completions", COMPLETION, {"decoder_input": ""}, {"decoder_input": ["a", "b"]}, {"prompt": LONG}),
    (
        "exact", "/v1/decisions", {"input": "I", "questions": [{"type": "predicate", "instructions": "P"}]},
        {"questions": []}, {"questions": [{"type": "other", "instructions": "P"}]}, {"input": ""},
        {"questions": [{"type": "choice", "instructions": "P", "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "7"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"input": LONG},
    ),
    (
        "chat", "/v1/systemone", {"state": "s", "questions": {"q": {"type": "noul", "instructions": "y"}}},
        {"questions": {}}, {"questions": {"q": {"type": "noul"}}}, {"questions": {"q": {"type": "x"}}},
        {"stream": True},
        {"questions": {"q": {"type": "choice", "criteria": {}}}}, {"assets": ["x"]}, {"state": LONG},
    ),
    ("chat", "/tokenize", {}, {}, {"prompt": "a", "messages": USER}, {"prompt": "a", "tools": [TOOL]},
     {"content": "a"}),
    ("chat", "/detokenize", {}, {"tokens": [99999]}, {"tokens": ["a"]}, {}),
)  # fmt: skip
"""Groups of wrong requests: the application, the path, a body, and its changes; each changed body is refused."""
