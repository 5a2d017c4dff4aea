"""Generate objects and calls like users of the anthropic package; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Any, Literal

import anthropic
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: Literal[3, 12, 25]  # the package moves the bounds of a number into its description


url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
messages: list[Any] = [{"role": "user", "content": "Is it cold in Oslo?"}]
asked: Any = {"model": model, "max_tokens": 100, "extra_body": {"temperature": 0}}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}}, "required": ["city"]}
tools: Any = [{"name": "weather", "input_schema": {**PARAMETERS, "additionalProperties": False}}]
objects = [client.messages.parse(messages=messages, output_format=Weather, **asked).parsed_output]
with client.messages.stream(messages=messages, output_format=Weather, **asked) as stream:
    objects.append(stream.get_final_message().parsed_output)
assert all(isinstance(found, Weather) for found in objects)
answer = client.messages.create(messages=messages, tools=tools, tool_choice={"type": "any"}, **asked)
with client.messages.stream(
    messages=messages, tools=tools, tool_choice={"type": "tool", "name": "weather"}, **asked
) as stream:
    streamed = stream.get_final_message()
used = [block for block in answer.content if block.type == "tool_use"]
calls = [
    {"name": block.name, "arguments": block.input} for block in [*used, *streamed.content] if block.type == "tool_use"
]
results = [{"type": "tool_result", "tool_use_id": block.id, "content": "3 degrees"} for block in used]
messages += [answer.to_param(), {"role": "user", "content": results}]
with client.messages.stream(messages=messages, tools=tools, **asked) as stream:
    answers = ["".join(stream.text_stream)]
told = {"objects": [found.model_dump() for found in objects], "calls": calls, "answers": answers}
json.dump(told, sys.stdout)
