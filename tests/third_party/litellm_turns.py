"""Chat like users of litellm; test_clients.py checks the output."""

import json
import sys

import litellm

url, model, first, second = sys.argv[1:]
asked = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
messages = [{"role": "user", "content": first}]
answer = litellm.completion(messages=messages, temperature=0, max_tokens=12, **asked)
turns = [answer.choices[0].message.content]
messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": second}]
turns.append(litellm.completion(messages=messages, temperature=0, max_tokens=12, **asked).choices[0].message.content)
stream = litellm.completion(messages=messages, temperature=0, max_tokens=12, stream=True, **asked)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
embedding = litellm.embedding(input=[first], **asked).data[0]["embedding"]
json.dump({"turns": turns, "streamed": streamed, "embedding": embedding}, sys.stdout)
