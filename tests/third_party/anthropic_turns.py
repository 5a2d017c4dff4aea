"""Chat like users of the anthropic package; test_clients.py checks the output."""

import json
import sys
from typing import Any

import anthropic

url, model, first, second = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
asked: Any = {"model": model, "max_tokens": 12, "extra_body": {"temperature": 0}}
messages: list[Any] = [{"role": "user", "content": first}]
answers = [client.messages.create(messages=messages, **asked)]
messages += [answers[0].to_param(), {"role": "user", "content": second}]
answers.append(client.messages.create(messages=messages, **asked))
with client.messages.stream(messages=messages, **asked) as stream:
    streamed = "".join(stream.text_stream)
    usage = stream.get_final_message().usage
counted = client.messages.count_tokens(model=model, messages=messages).input_tokens
turns = ["".join(block.text for block in answer.content if block.type == "text") for answer in answers]
read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
json.dump({"turns": turns, "streamed": streamed, "counted": counted, "read": read}, sys.stdout)
