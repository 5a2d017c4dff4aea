"""Embed and chat like users of haystack; test_clients.py checks the output."""

import json
import sys

from haystack.dataclasses import ChatMessage, Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.generators.huggingface_api import HuggingFaceAPIChatGenerator
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

kind, url, *texts = sys.argv[1:]
if kind == "chat":
    generator = HuggingFaceAPIChatGenerator(
        api_type="text_generation_inference", api_params={"url": url}, generation_kwargs={"max_tokens": 12, "seed": 1}
    )
    json.dump([generator.run([ChatMessage.from_user(text)])["replies"][0].text for text in texts], sys.stdout)
else:
    tei = {"api_type": "text_embeddings_inference", "api_params": {"url": url}}
    embedded = HuggingFaceAPIDocumentEmbedder(**tei).run([Document(content=text) for text in texts])["documents"]
    vectors = [HuggingFaceAPITextEmbedder(**tei).run(texts[0])["embedding"], *(each.embedding for each in embedded)]
    ranked = HuggingFaceTEIRanker(url=url).run(texts[0], [Document(content=text) for text in texts])["documents"]
    json.dump({"vectors": vectors, "best": ranked[0].content}, sys.stdout)
