"""Generate objects like users of instructor; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bern", "Oslo"]
    degrees: int = Field(ge=0, le=40)


url, model = sys.argv[1:]
plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
question = [{"role": "user", "content": "Is it cold in Oslo?"}]
objects = []
for mode in instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT:
    client = instructor.from_openai(plain, mode=mode)
    found = client.create(messages=question, response_model=Weather, max_retries=0, model=model, temperature=0)
    assert isinstance(found, Weather), mode
    objects.append(found.model_dump())
    for found in client.create_partial(messages=question, response_model=Weather, model=model, temperature=0):
        last = found.model_dump()
    objects.append(last)
json.dump({"objects": objects}, sys.stdout)
