"""Chat like users of langchain-openai; test_clients.py checks the output."""

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, model, first, second = sys.argv[1:]
chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=12, max_retries=0)
messages = [HumanMessage(first)]
answers = [chat.invoke(messages)]
messages += [answers[0], HumanMessage(second)]
answers.append(chat.invoke(messages))
streamed = "".join(chunk.content for chunk in chat.stream(messages))
# It counts tokens itself and sends their ids, with a tokenizer of OpenAI's that it downloads: no other server has that.
to_vectors = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model=model, check_embedding_ctx_length=False)
embedding = to_vectors.embed_query(first)
json.dump({"turns": [x.content for x in answers], "streamed": streamed, "embedding": embedding}, sys.stdout)
