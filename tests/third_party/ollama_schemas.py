"""Generate objects and calls like users of the ollama package; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Any, Literal

import ollama
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


def weather(city: str) -> str:
    """Say what the weather of a city is.

    Args:
        city: its name
    """
    return f"{city}: 3 degrees"


url, model = sys.argv[1:]
client = ollama.Client(url)
options = {"temperature": 0, "num_predict": 40}
messages: list[Any] = [{"role": "user", "content": "Is it cold in Oslo?"}]
schema = Weather.model_json_schema()
objects = [client.chat(model, messages, format=schema, options=options).message.content]
objects.append(client.generate(model, "Is it cold in Oslo?", format=schema, options=options).response)
parts = client.chat(model, messages, format=schema, options=options, stream=True)
objects.append("".join(part.message.content or "" for part in parts))
answer = client.chat(model, messages, tools=[weather], options=options).message
messages.append(answer)
for call in answer.tool_calls or [ollama.Message.ToolCall(function={"name": "weather", "arguments": {"city": "Oslo"}})]:
    messages.append({"role": "tool", "tool_name": call.function.name, "content": weather(**call.function.arguments)})
answers = [client.chat(model, messages, tools=[weather], options=options).message.content]
calls = [{"name": x.function.name, "arguments": dict(x.function.arguments)} for x in answer.tool_calls or []]
json.dump(
    {"objects": [Weather.model_validate_json(x).model_dump() for x in objects], "answers": answers, "calls": calls},
    sys.stdout,
)
