"""Bodies and answers of POST /v1/rerank, /v2/rerank and /rerank, as in Cohere, Jina, vLLM and Text Embeddings
Inference.
"""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

from lightwell.server.schemas.base import AnswerModel, RequestModel, Text, Usage
from lightwell.server.schemas.judgements.head_fields import MAX_DOCUMENTS, ManyTexts, PairFields, TeiReadFields
from lightwell.server.schemas.judgements.reasons import Reasons


class Document(TypedDict):
    """A document as an object."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    text: Annotated[Text, Field(description="Its text.")]


AnyDocument = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[Document, Tag("<object>")],
    Discriminator(lambda each: "<object>" if isinstance(each, dict) else "<text>"),
]
Documents = Annotated[list[AnyDocument], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]


class RerankRequest(PairFields):
    """Body of POST /v1/rerank, /v2/rerank and /rerank: Cohere's, Jina's and vLLM's fields."""

    query: Text = Field(description="The query: subject of the relevant documents.")
    documents: Documents = Field(description="The documents: texts, or objects with a text.")
    top_n: int = Field(0, ge=0, le=2**31 - 1, description="Number of best results to return; 0 is all.")
    return_documents: bool = Field(False, description="Repeat each document in its result.")


class TeiRerankRequest(TeiReadFields):
    """Body of POST /rerank as Text Embeddings Inference has it: with `texts` in place of `documents`."""

    query: Text = Field(description="The query: subject of the relevant texts.")
    texts: ManyTexts = Field(description="The texts.")
    return_text: bool = Field(False, description="Repeat each text in its result.")
    top_n: int = Field(0, ge=0, le=2**31 - 1, description="Number of best results to return; 0 is all.")


def _kind(body: Any) -> str:
    is_tei = "texts" in body if isinstance(body, dict) else isinstance(body, TeiRerankRequest)
    return "<texts>" if is_tei else "<documents>"  # in brackets, so that it is no field in an error's path


AnyRerankRequest = Annotated[
    Annotated[TeiRerankRequest, Tag("<texts>")] | Annotated[RerankRequest, Tag("<documents>")], Discriminator(_kind)
]
"""The body of POST /rerank: with `texts` of Text Embeddings Inference, with `documents` of the other APIs."""


class RerankResult(AnswerModel):
    """One document's score."""

    index: int = Field(description="The document's number.")
    relevance_score: float = Field(description="The score.")
    document: dict[str, str] | None = Field(None, description='With return_documents: {"text": the document}.')
    reasons: Reasons | None = Field(None, description="With explain: the reasons of the score.")


class RerankAnswer(AnswerModel):
    """Answer of POST /v1/rerank, /v2/rerank and /rerank."""

    id: str = Field(description="Id of the answer.")
    model: str = Field(description="Name of the model.")
    results: list[RerankResult] = Field(description="The documents, the best first; of equals the first is first.")
    usage: Usage = Field(description="Token counts.")
    meta: dict[str, Any] = Field(description="Metadata of Cohere's answers: the API's version and units.")


class TeiRank(AnswerModel):
    """One text's score."""

    index: int = Field(description="The text's number.")
    score: float = Field(description="The score.")
    text: str | None = Field(None, description="With return_text: the text.")
    reasons: Reasons | None = Field(None, description="With explain: the reasons of the score.")
