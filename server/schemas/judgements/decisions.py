"""Body and answer of POST /v1/decisions, as in the types of the openai package."""

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import Discriminator, Field, Tag, model_validator
from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import AnswerModel, RequestModel, Text, wrong
from lightwell.server.schemas.chat_messages import MAX_CALLS, MAX_MESSAGES, MAX_PARTS
from lightwell.server.schemas.judgements.fields import (
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    NO_IMAGES,
    JsonObject,
    JsonObjects,
    JudgementFields,
    OptionProbability,
    QuestionName,
    json_text,
    of_known_type,
)
from lightwell.server.schemas.judgements.reasons import Reasons
from lightwell.server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE, Ignored

_OF_ANSWERS: Ignored = dict.fromkeys(("id", "status", "phase"), "a field of answers; no chat template reads it")
_BREAKPOINT = "Accepted and ignored: the prefix cache needs none."
REFUSED_PARTS = {"input_image": NO_IMAGES}
REFUSED_ITEMS = dict.fromkeys(
    ("custom_tool_call", "custom_tool_call_output"), "a tool's arguments are JSON; send it as a function_call"
)


class TextPart(TypedDict):
    """A part that is text."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[
        Literal["input_text", "output_text"],
        Field(description='"input_text", or in the assistant\'s messages "output_text".'),
    ]
    text: Annotated[Text, Field(description="The text.")]
    prompt_cache_breakpoint: Annotated[NotRequired[Any], Field(description=_BREAKPOINT)]


class RefusalPart(TypedDict):
    """A part of the assistant's message in which it refused."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[Literal["refusal"], Field(description='"refusal".')]
    refusal: Annotated[Text, Field(description="The text.")]


class JsonPart(TypedDict):
    """A part that is JSON, written as its text."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[Literal["input_json"], Field(description='"input_json".')]
    data: Annotated[JsonObject | JsonObjects, Field(description="An object, or a list of objects.")]


def _tag(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return f"<{kind}>"  # in brackets, so that it is no field in an error's path


Part = Annotated[
    Annotated[TextPart, Tag("<input_text>")]
    | Annotated[TextPart, Tag("<output_text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[JsonPart, Tag("<input_json>")],
    Discriminator(_tag),
    of_known_type(("input_text", "output_text", "refusal", "input_json"), REFUSED_PARTS),
]
Parts = Text | Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
"""A text, or a list of parts."""


def text_of(content: str | list[Any]) -> str:
    """Return the text of a content."""
    if isinstance(content, str):
        return content
    return "".join([json_text(part.get("text", part.get("refusal", part.get("data")))) for part in content])


class Message(RequestModel):
    """One message of the input."""

    IGNORED: ClassVar[Ignored] = _OF_ANSWERS

    type: Literal["message"] = Field("message", description='"message"; it may be left out.')
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="Who speaks; developer is system for a chat template that does not name it."
    )
    content: Parts = Field(description="The text, or a list of parts: texts and JSON.")


class FunctionCall(RequestModel):
    """A call of a tool."""

    IGNORED: ClassVar[Ignored] = {**_OF_ANSWERS, "namespace": "a call contains only the name of the tool"}

    type: Literal["function_call"] = Field(description='"function_call".')
    call_id: Text = Field(min_length=1, description="The call's id, which its output repeats.")
    name: Text = Field(min_length=1, description="The tool's name.")
    arguments: Text = Field(description="The arguments, an object as JSON.")


class FunctionCallOutput(RequestModel):
    """The result of a tool call."""

    IGNORED: ClassVar[Ignored] = _OF_ANSWERS

    type: Literal["function_call_output"] = Field(description='"function_call_output".')
    call_id: Text = Field(min_length=1, description="The id of an earlier call.")
    output: Parts = Field(description="The text, or a list of parts.")


Item = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[FunctionCallOutput, Tag("<function_call_output>")],
    Discriminator(lambda item: _tag(item) if _tag(item) != "<None>" else "<message>"),
    of_known_type(("message", "function_call", "function_call_output"), REFUSED_ITEMS),
]


class Question(RequestModel):
    """Fields of all questions."""

    name: QuestionName | None = Field(None, description="Name of the question; the answer repeats it.")
    instructions: Parts = Field(description="The question.")


class Predicate(Question):
    """Asks how likely it is that a statement about the input is true."""

    type: Literal["predicate"] = Field(description='"predicate".')


class Choice(RequestModel):
    """One option of a choice."""

    value: Text | bool = Field(description="Value in the answer: a string, or a boolean.")
    description: Text | None = Field(None, description="When it applies.")


class ChoiceQuestion(Question):
    """Asks which option fits the input."""

    type: Literal["choice"] = Field(description='"choice".')
    choices: Annotated[list[Choice], Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True)] = Field(
        description="The options, each once; the tokenizer may have labels for fewer."
    )

    @model_validator(mode="after")
    def _each_once(self) -> "ChoiceQuestion":
        seen = set()
        for i, choice in enumerate(self.choices):
            key = (type(choice.value), choice.value)
            if key in seen:
                told = f"the value {shown(choice.value)} of number {i} is there twice; each once is accepted"
                raise wrong("choices", told)
            seen.add(key)
        return self


class Level(RequestModel):
    """One level of a score."""

    label: Text = Field(description="Name of the level.")
    description: Text | None = Field(None, description="When it applies.")


class ScoreQuestion(Question):
    """Asks for a rating on levels in order."""

    type: Literal["score"] = Field(description='"score".')
    levels: Annotated[list[Level], Field(min_length=2, max_length=MAX_LEVELS, fail_fast=True)] = Field(
        description="The levels from the lowest, which is 0."
    )


AnyQuestion = Annotated[
    Annotated[Predicate, Tag("<predicate>")]
    | Annotated[ChoiceQuestion, Tag("<choice>")]
    | Annotated[ScoreQuestion, Tag("<score>")],
    Discriminator(_tag),
    of_known_type(("predicate", "choice", "score"), {}),
]


class DecisionsRequest(JudgementFields):
    """Body of POST /v1/decisions."""

    IGNORED = IGNORED_EVERYWHERE
    REFUSED = REFUSED_EVERYWHERE

    input: Text | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        description="Subject of the questions: a text, or a conversation with calls of tools and their outputs."
    )
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)] = Field(
        description="The questions; the answers come in their order."
    )

    @model_validator(mode="after")
    def _outputs_have_calls(self) -> "DecisionsRequest":
        called, num_in_a_row = set(), 0
        for i, item in enumerate(self.input if isinstance(self.input, list) else ()):
            num_in_a_row = num_in_a_row + 1 if isinstance(item, FunctionCall) else 0
            if num_in_a_row > MAX_CALLS:  # they are one message
                raise wrong(
                    "input", f"item {i} is call number {num_in_a_row} in a row; at most {MAX_CALLS} are accepted"
                )
            if isinstance(item, FunctionCall):
                called.add(item.call_id)
            elif isinstance(item, FunctionCallOutput) and item.call_id not in called:
                told = f"number {i} is the output of {shown(item.call_id)}, which no call before it has as id"
                raise wrong("input", told)
        return self


class ChoiceProbability(OptionProbability):
    """The probability of one option of a choice."""

    value: str | bool = Field(description="The option.")


class LevelProbability(OptionProbability):
    """The probability of one level of a score."""

    label: str = Field(description="The level's label.")
    value: int = Field(description="Its number, from 0.")


class DecisionAnswer(AnswerModel):
    """The answer to one question; which fields it has depends on its type."""

    type: Literal["predicate", "choice", "score"] = Field(description="The question's type.")
    name: str | None = Field(description="The question's name.")
    probability: float | None = Field(None, description="predicate: how likely it is that it is true.")
    choice: str | bool | None = Field(None, description="choice: the likeliest option, the first among equals.")
    score: float | None = Field(None, description="score: the mean of the levels' numbers, by their probabilities.")
    confidence: float | None = Field(
        None,
        description="choice, score: (largest probability - 1/n) / (1 - 1/n): 0 if all n are equal, 1 if one is sure.",
    )
    probabilities: list[ChoiceProbability | LevelProbability] | None = Field(
        None, description="choice, score: of each option, in their order."
    )
    reasons: Reasons | None = Field(None, description="With explain: why the likeliest option is the likeliest.")


class DecisionsUsage(AnswerModel):
    """Tokens of all questions together."""

    input_tokens: int = Field(description="Tokens that were read: the input counts for each question.")
    input_tokens_details: dict[str, int] = Field(
        description="cached_tokens: those from the prefix cache, which were not computed; cache_write_tokens: 0."
    )
    output_tokens: int = Field(description="One for each question.")
    output_tokens_details: dict[str, int] = Field(description="reasoning_tokens: 0.")
    total_tokens: int = Field(description="Their sum.")


class DecisionsAnswer(AnswerModel):
    """Answer of POST /v1/decisions."""

    answers: list[DecisionAnswer] = Field(description="One for each question, in their order.")
    model: str = Field(description="Name of the model.")
    usage: DecisionsUsage = Field(description="Token counts.")
