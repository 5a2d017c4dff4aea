"""Chat like users of LlamaIndex; test_clients.py checks the output."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

url, model, first, second = sys.argv[1:]
asked = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
chat = OpenAILike(model=model, is_chat_model=True, temperature=0, max_tokens=12, **asked)
messages = [ChatMessage(role="user", content=first)]
answers = [chat.chat(messages).message]
messages += [answers[0], ChatMessage(role="user", content=second)]
answers.append(chat.chat(messages).message)
streamed = "".join(chunk.delta or "" for chunk in chat.stream_chat(messages))
embedding = OpenAILikeEmbedding(model_name=model, **asked).get_text_embedding(first)
json.dump({"turns": [x.content for x in answers], "streamed": streamed, "embedding": embedding}, sys.stdout)
