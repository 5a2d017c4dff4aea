"""Generate objects and calls like users of langchain-openai; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


@tool
def weather(city: Literal["Bern", "Oslo"]) -> str:
    """Say what the weather of a city is."""
    return f"{city}: 3 degrees"


url, model = sys.argv[1:]
objects, calls, answers = [], [], []
question = HumanMessage("Is it cold in Oslo?")
for responses in False, True:
    chat = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_retries=0, use_responses_api=responses
    )
    for method in "json_schema", "function_calling":
        for strict in None, True:
            found = chat.with_structured_output(Weather, method=method, strict=strict).invoke([question])
            assert isinstance(found, Weather), method
            objects.append(found.model_dump())
    asked = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke([question])
    calls += [{"name": call["name"], "arguments": call["args"]} for call in asked.tool_calls]
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in asked.tool_calls]
    end = chat.bind_tools([weather], tool_choice="none", max_tokens=16)
    answers.append(end.invoke([question, asked, *results]).text)
json.dump({"objects": objects, "calls": calls, "answers": answers}, sys.stdout)
