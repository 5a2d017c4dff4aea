"""Bodies and answers of POST /v1/classify and /classify, as in vLLM, and /predict, as in Text Embeddings Inference."""

from typing import Annotated, Literal

from pydantic import Field

from lightwell.server.schemas.base import AnswerModel, PromptInput, RequestModel, Text, Usage
from lightwell.server.schemas.judgements.head_fields import MAX_DOCUMENTS, ReadFields, TeiReadFields
from lightwell.server.schemas.judgements.reasons import Reasons


class ClassifyRequest(ReadFields):
    """Body of POST /v1/classify and /classify."""

    input: PromptInput = Field(description="A text, a list of texts, token ids, or a list of token id lists.")
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens to a text.")


class Classification(AnswerModel):
    """One input's labels."""

    index: int = Field(description="Number of the input.")
    label: str = Field(description="The likeliest label.")
    probs: list[float] = Field(description="The number of each label.")
    num_classes: int = Field(description="How many labels there are.")
    reasons: Reasons | None = Field(None, description="With explain: why the likeliest label is the likeliest.")


class ClassifyAnswer(AnswerModel):
    """Answer of POST /v1/classify and /classify."""

    id: str = Field(description="Id of the answer.")
    object: Literal["list"] = Field(description="Kind of answer.")
    created: int = Field(description="When it was made, in seconds since 1970.")
    model: str = Field(description="Name of the model.")
    data: list[Classification] = Field(description="One entry an input.")
    usage: Usage = Field(description="Token counts.")


OneOrTwo = Annotated[list[Text], Field(min_length=1, max_length=2, fail_fast=True)]
PredictInputs = (
    Text | OneOrTwo | Annotated[list[OneOrTwo], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
)


class PredictParameters(RequestModel):
    """Further fields of POST /predict, where Hugging Face's Inference API has them."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = Field(
        None, description="The function of the head's logits; null is the model's own."
    )
    top_k: int | None = Field(None, ge=1, le=2**31 - 1, description="Number of likeliest labels to return.")


class PredictRequest(TeiReadFields):
    """Body of POST /predict."""

    inputs: PredictInputs = Field(
        description="A text, a list of one text, or a pair of texts; many are a list of such lists: "
        '[["one text"], ["a", "pair"]].'
    )
    parameters: PredictParameters | None = Field(
        None, description="As huggingface_hub sends it; the answer is then a list of lists, also for one input."
    )


class Prediction(AnswerModel):
    """The score of one label."""

    score: float = Field(description="The score.")
    label: str = Field(description="The label.")
    reasons: Reasons | None = Field(None, description="With explain, only for the likeliest label: its reasons.")


PredictAnswer = list[Prediction] | list[list[Prediction]]
"""Answer of POST /predict: the labels of the one input, or of each of many, the likeliest first."""
