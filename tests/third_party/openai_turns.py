"""Chat like users of the openai package; test_clients.py checks the output."""

import json
import sys
from typing import Any

import openai

url, model, first, second = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
messages: list[Any] = [{"role": "user", "content": first}]
answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12)
turns = [answer.choices[0].message.content]
messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": second}]
answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12)
turns.append(answer.choices[0].message.content)
stream = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}
)
streamed = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
embedding = client.embeddings.create(model=model, input=[first]).data[0].embedding
json.dump({"turns": turns, "streamed": streamed, "embedding": embedding}, sys.stdout)
