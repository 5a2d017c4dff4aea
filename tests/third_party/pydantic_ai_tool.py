"""Run agents of pydantic-ai with a tool and an output type; test_agents.py checks the output."""

import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: int


url, model = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
asked, outputs = [], []


def weather(city: str) -> str:
    """Say what the weather of a city is."""
    asked.append(city)
    return f"{city}: 3 degrees"


for served in OpenAIChatModel(model, provider=provider), OpenAIResponsesModel(model, provider=provider):
    agent = Agent(served, output_type=NativeOutput(Weather), tools=[weather])
    outputs.append(agent.run_sync("Is it cold in Oslo?").output)
    with agent.run_stream_sync("Is it cold in Oslo?") as streamed:
        outputs.append(streamed.get_output())
assert all(isinstance(output, Weather) for output in outputs)
json.dump({"asked": asked, "outputs": [output.model_dump() for output in outputs]}, sys.stdout)
