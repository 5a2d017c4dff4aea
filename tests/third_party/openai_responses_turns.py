"""Send responses like users of the openai package; test_clients.py checks the output."""

import json
import sys
from typing import Any

import openai

url, model, first, second = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
items: list[Any] = [{"role": "user", "content": first}]
answer = client.responses.create(model=model, input=items, temperature=0, max_output_tokens=12)
turns = [answer.output_text]
items += [*(item.to_dict() for item in answer.output), {"role": "user", "content": second}]
answer = client.responses.create(model=model, input=items, temperature=0, max_output_tokens=12)
turns.append(answer.output_text)
stream = client.responses.create(model=model, input=items, temperature=0, max_output_tokens=12, stream=True)
streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
with client.responses.stream(model=model, input=items, temperature=0, extra_body={"stop": "."}) as events:
    helped = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events.get_final_response()
parsed = client.responses.parse(model=model, input=items, temperature=0, extra_body={"stop": "."})
told = {"turns": turns, "streamed": streamed, "sentences": [helped, final.output_text, parsed.output_text]}
json.dump({**told, "statuses": [answer.status, final.status]}, sys.stdout)
