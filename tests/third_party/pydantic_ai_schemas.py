"""Generate objects and calls like users of pydantic-ai; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


url, model = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
question = "Is it cold in Oslo?"
objects = []
for served in OpenAIChatModel(model, provider=provider), OpenAIResponsesModel(model, provider=provider):
    for output in ToolOutput(Weather), NativeOutput(Weather):
        agent = Agent(served, output_type=output, model_settings={"temperature": 0})
        first = agent.run_sync(question)
        second = agent.run_sync("And in Bern?", message_history=first.all_messages())
        objects += [first.output, second.output]
        with agent.run_stream_sync(question) as streamed:
            objects.append(streamed.get_output())
assert all(isinstance(found, Weather) for found in objects)
json.dump({"objects": [found.model_dump() for found in objects]}, sys.stdout)
