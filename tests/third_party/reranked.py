"""Rerank like users of other projects' clients; test_clients.py checks the output."""

import json
import sys
from typing import Any

import cohere
from langchain_cohere import CohereRerank
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from rerankers import Reranker

url, model, query, *documents = sys.argv[1:]
found: dict[str, Any] = {}


def refusal(client: Any) -> str:
    """Return what a client's own exception tells of a model that is not there."""
    try:
        client.rerank(model="another", query=query, documents=documents)
    except cohere.NotFoundError as error:
        return str(error.body["message"])
    return ""


newer = cohere.ClientV2(api_key="none", base_url=url)
answer = newer.rerank(model=model, query=query, documents=documents, max_tokens_per_doc=4096)
found["cohere.ClientV2"] = [[each.index, each.relevance_score] for each in answer.results]
found["tokens"] = answer.meta.tokens.input_tokens
older = cohere.Client(api_key="none", base_url=url)
objects = [{"text": document} for document in documents]
answer = older.rerank(model=model, query=query, documents=objects, return_documents=True)
found["cohere.Client"] = [[each.index, each.relevance_score] for each in answer.results]
found["documents"] = [each.document.text for each in answer.results]
found["refusals"] = [refusal(newer), refusal(older)]

langchain = CohereRerank(cohere_api_key="none", base_url=url, model=model, top_n=None)
ranked = langchain.rerank(documents, query)
found["langchain-cohere"] = [[each["index"], each["relevance_score"]] for each in ranked]

nodes = [NodeWithScore(node=TextNode(text=document, id_=str(i))) for i, document in enumerate(documents)]
tei = TextEmbeddingInference(top_n=len(documents), base_url=url, model_name=model)
ranked = tei.postprocess_nodes(nodes, QueryBundle(query))
found["llama-index-tei"] = [[int(each.node.id_), each.score] for each in ranked]
jina = JinaRerank(api_key="none", model=model, base_url=f"{url}/v1", top_n=len(documents))
ranked = jina.postprocess_nodes(nodes, QueryBundle(query))
found["llama-index-jina"] = [[int(each.node.id_), each.score] for each in ranked]

for provider, path in (("jina", "/v1/rerank"), ("cohere", "/v1/rerank"), ("text-embeddings-inference", "/rerank")):
    ranker = Reranker(
        model, model_type="APIRanker", api_provider=provider, api_key="none", url=f"{url}{path}", verbose=0
    )
    ranked = ranker.rank(query=query, docs=documents).results
    found[f"rerankers-{provider}"] = [[each.doc_id, each.score] for each in ranked]
json.dump(found, sys.stdout)
