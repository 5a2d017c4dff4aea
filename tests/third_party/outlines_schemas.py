"""Generate objects, choices and patterns like users of outlines; test_schemas_and_tools.py checks the output."""

import json
import re
import sys
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
question = "Is it cold in Oslo?"
objects = []
for served in outlines.from_vllm(client, model), outlines.from_openai(client, model):
    objects.append(Weather.model_validate_json(served(question, Weather, temperature=0)).model_dump())
    streamed = "".join(served.stream(question, Weather, temperature=0))
    objects.append(Weather.model_validate_json(streamed).model_dump())
served = outlines.from_vllm(client, model)
assert served(question, Literal["yes", "no"], temperature=0) in ("yes", "no")
assert re.fullmatch("[0-9]{1,2} degrees", served(question, Regex("[0-9]{1,2} degrees"), temperature=0))
assert int(served(question, int, temperature=0, max_tokens=4)) >= 0
assert served(question, CFG('start: "it is " ("cold" | "warm")'), temperature=0) in ("it is cold", "it is warm")
json.dump({"objects": objects}, sys.stdout)
