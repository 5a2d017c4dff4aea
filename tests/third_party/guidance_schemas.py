"""Generate an object like users of guidance; test_schemas_and_tools.py checks the output."""

import json
import sys

from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel

url, model = sys.argv[1:]
lm = VLLMModel(model, base_url=f"{url}/v1", api_key="none", echo=False)
with user():
    lm += "Is it cold in Oslo?"
with assistant():
    lm += "In " + select(["Bern", "Oslo"], name="city") + " it has " + gen("degrees", regex="[1-3]?[0-9]") + " degrees."
json.dump({"objects": [{"city": lm["city"], "degrees": int(lm["degrees"])}]}, sys.stdout)
