"""Generate objects and calls like users of the openai package; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


class LookUp(BaseModel):
    """Say what the weather of a city is."""

    city: Literal["Bern", "Oslo"]


url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
question: list[Any] = [{"role": "user", "content": "Is it cold in Oslo?"}]
settled: Any = {"model": model, "temperature": 0}

parsed = client.chat.completions.parse(messages=question, response_format=Weather, **settled)
objects = [parsed.choices[0].message.parsed]
with client.chat.completions.stream(messages=question, response_format=Weather, **settled) as events:
    objects.append(events.get_final_completion().choices[0].message.parsed)

tools = [openai.pydantic_function_tool(LookUp, name="weather")]
required: Any = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
with client.chat.completions.stream(messages=question, **required, **settled) as events:
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    streamed = events.get_final_completion().choices[0].message
message = client.chat.completions.parse(messages=question, **required, **settled).choices[0].message
functions = [message.tool_calls[0].function, streamed.tool_calls[0].function]
calls = [{"name": each.name, "arguments": each.parsed_arguments.model_dump()} for each in functions]
assert "".join(deltas) == functions[1].arguments
result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3 degrees"}
messages = [*question, message, result]
second = client.chat.completions.create(messages=messages, tools=tools, tool_choice="none", max_tokens=12, **settled)
answers = [second.choices[0].message.content]

response = client.responses.parse(input=question, text_format=Weather, **settled)
objects.append(response.output_parsed)
required["tools"] = [{"type": "function", **tools[0]["function"]}]
response = client.responses.parse(input=question, **required, **settled)
items = list(question)
for item in response.output:
    items.append(item.to_dict())
    if item.type == "function_call":
        calls.append({"name": item.name, "arguments": json.loads(item.arguments)})
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "3 degrees"})
required["tool_choice"] = "none"
with client.responses.stream(input=items, max_output_tokens=16, **required, **settled) as events:
    answers.append(events.get_final_response().output_text)
told = {"objects": [isinstance(x, Weather) and x.model_dump() for x in objects], "calls": calls, "answers": answers}
json.dump(told, sys.stdout)
