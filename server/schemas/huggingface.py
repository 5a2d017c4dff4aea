"""Bodies and answers of the routes of Text Embeddings Inference (TEI) and Text Generation Inference (TGI).

Sampling parameters have the bounds of `GenerationFields`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lightwell.server.schemas.base import AnswerModel, PromptTokens, RequestModel, RunFields, Text, Texts
from lightwell.server.schemas.embeddings import TeiCut, TeiInputFields
from lightwell.server.schemas.generation import definition_of
from lightwell.server.schemas.known_fields import REFUSED_BY_GENERATION, Refused, RefusedFields
from lightwell.server.schemas.sampling import MAX_LOGPROBS, MAX_STOP_STRINGS, MAX_TOKENS, StopString
from lightwell.server.schemas.structured_outputs import Schema


class EmbedRequest(TeiInputFields):
    """Body of POST /embed."""

    normalize: bool = Field(True, description="Scale each vector to length 1.")
    dimensions: int | None = Field(None, ge=1, le=2**31 - 1, description="Keep the first n numbers of each vector.")


class Sentences(RequestModel):
    """The texts of POST /similarity."""

    source_sentence: Text = Field(description="The text that the others are compared with.")
    sentences: Annotated[Texts, Field(min_length=1)] = Field(description="The other texts.")


class SimilarityRequest(RunFields):
    """Body of POST /similarity."""

    inputs: Sentences = Field(description="The texts.")
    parameters: TeiCut = Field(default_factory=lambda: TeiCut.model_validate({}), description="How they are read.")


class TgiGrammar(RequestModel):
    """The form of a text."""

    type: Literal["json", "regex", "json_schema"] = Field(
        description="json: JSON of the schema `value`; json_schema: of `value.schema`; regex: a match of `value`."
    )
    value: Schema = Field(description="The schema, its text, or the regular expression.")


class GenerateParameters(RequestModel):
    """Sampling and output parameters of a generation."""

    REFUSED: ClassVar[RefusedFields] = {
        "typical_p": REFUSED_BY_GENERATION["typical_p"],
        "watermark": REFUSED_BY_GENERATION["watermarking"],
        "best_of": Refused("the server generates one text", (1,)),
    }

    max_new_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Most tokens to generate; null is 100, or the rest of the context."
    )
    do_sample: bool = Field(
        False, description="Draw tokens, as temperature, top_k and top_p also do; else the likeliest is taken."
    )
    temperature: float | None = definition_of("temperature")
    top_k: int | None = definition_of("top_k")
    top_p: float | None = definition_of("top_p")
    repetition_penalty: float | None = definition_of("repetition_penalty")
    frequency_penalty: float | None = definition_of("frequency_penalty")
    seed: int | None = definition_of("seed")
    speculation: bool = definition_of("speculation")
    stop: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = Field(
        default_factory=list, description="Strings that end the text; the text contains the one that ended it."
    )
    truncate: PromptTokens | None = Field(None, description="Largest number of tokens to keep, from the end.")
    grammar: TgiGrammar | None = Field(None, description="The form of the text.")
    return_full_text: bool = Field(False, description="Begin the text with the prompt.")
    details: bool = Field(False, description="Add the tokens, their log-probabilities and the reason of the end.")
    decoder_input_details: bool = Field(False, description="With details: also the tokens of the prompt.")
    top_n_tokens: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="With details, and in a stream: number of alternatives of each token."
    )
    adapter_id: Text | None = Field(None, description="A LoRA adapter, by its name.")

    @property
    def is_sampled(self) -> bool:
        """Return whether tokens are drawn."""
        warps = self.temperature not in (None, 1.0) or (self.top_k or 0) > 0 or self.top_p not in (None, 1.0)
        return self.do_sample or warps


class GenerateRequest(RunFields):
    """Body of POST /generate and /generate_stream."""

    inputs: Text = Field(description="The prompt.")
    parameters: GenerateParameters = Field(
        default_factory=lambda: GenerateParameters.model_validate({}), description="How the text is generated."
    )
    stream: bool = Field(False, description="Answer with server-sent events, one a token.")


class GenerateAnswer(AnswerModel):
    """Answer of POST /generate."""

    generated_text: str = Field(description="The text.")
    details: dict[str, Any] | None = Field(
        None,
        description="With the parameter details: finish_reason, generated_tokens, seed, prefill, tokens, top_tokens.",
    )
