"""Chat like users of the ollama package; test_clients.py checks the output."""

import json
import sys
from typing import Any

import ollama

url, model, first, second = sys.argv[1:]
client = ollama.Client(url)
options = {"temperature": 0, "num_predict": 12}
messages: list[Any] = [{"role": "user", "content": first}]
answer = client.chat(model, messages, options=options)
turns = [answer.message.content]
messages += [answer.message, {"role": "user", "content": second}]
turns.append(client.chat(model, messages, options=options).message.content)
streamed = "".join(part.message.content or "" for part in client.chat(model, messages, options=options, stream=True))
embedding = client.embed(model, first).embeddings[0]
assert [each.model for each in client.list().models] == [f"{model}:latest"]
assert client.show(model).capabilities == ["completion", "embedding"]
json.dump({"turns": turns, "streamed": streamed, "embedding": embedding}, sys.stdout)
