"""Generate objects like users of huggingface_hub; test_schemas_and_tools.py checks the output."""

import json
import sys
from typing import Any

from huggingface_hub import InferenceClient

url, model = sys.argv[1:]
schema: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 40}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
client = InferenceClient(model=url)
question = "Is it cold in Oslo?"
form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
answer = client.chat_completion([{"role": "user", "content": question}], response_format=form, temperature=0)
held = client.text_generation(question, max_new_tokens=60, grammar={"type": "json", "value": schema})  # type: ignore[arg-type]  # as its documentation has it
json.dump({"objects": [json.loads(answer.choices[0].message.content), json.loads(held)]}, sys.stdout)
