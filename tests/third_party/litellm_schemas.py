"""Generate objects and calls like users of litellm; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


url, model = sys.argv[1:]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
question = [{"role": "user", "content": "Is it cold in Oslo?"}]
objects, calls, answers = [], [], []
for provider, path in ("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", ""), ("ollama_chat", ""):
    asked: Any = {"model": f"{provider}/{model}", "api_base": f"{url}{path}", "api_key": "none", "temperature": 0}
    found = litellm.completion(messages=question, response_format=Weather, **asked)
    objects.append(Weather.model_validate_json(found.choices[0].message.content).model_dump())
    message = litellm.completion(messages=question, tools=tools, tool_choice=NAMED, **asked).choices[0].message
    messages = [*question, message.model_dump()]
    for call in message.tool_calls or []:
        calls.append({"name": call.function.name, "arguments": json.loads(call.function.arguments)})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "3 degrees"})
    stream = litellm.completion(messages=messages, tools=tools, max_tokens=16, stream=True, **asked)
    answers.append("".join(chunk.choices[0].delta.content or "" for chunk in stream))
json.dump({"objects": objects, "calls": calls, "answers": answers}, sys.stdout)
