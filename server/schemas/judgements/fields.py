"""Common fields of the bodies with questions: bounds, texts that may be JSON, the chat template's variables."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import AnswerModel, JsonDict, RunFields, Text, encodable, wrong
from lightwell.server.schemas.chat_templates import TEMPLATE_ARGUMENTS, TemplateArguments
from lightwell.server.schemas.judgements.reasons import EXPLAIN, ExplainField

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
"""Most options of a choice that any tokenizer may have labels for."""
MAX_LEVELS = 10
MAX_JSON_DEPTH = 32
MAX_JSON_VALUES = 10_000
MAX_JSON_BYTES = 256 * 1024
QuestionName = Annotated[Text, Field(max_length=256)]
"""The name of a question and its answer."""
NO_IMAGES = "the server does not accept images"


def json_text(value: Any) -> str:
    """Return a JSON value as the model reads it: compact JSON, or the string itself."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _check_json(value: Any) -> Any:
    """Return an object or a list unchanged. Raises ValueError if it is over OpenAI's bounds, or no Unicode."""
    num_values, level = 0, [value]
    for depth in range(MAX_JSON_DEPTH + 1):
        num_values += len(level)
        if num_values > MAX_JSON_VALUES:
            raise ValueError(f"it has more than {MAX_JSON_VALUES} values, the largest accepted number")
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            break
        if depth == MAX_JSON_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels, the largest accepted depth")
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    size = len(encodable(json_text(value)).encode())
    if size > MAX_JSON_BYTES:
        raise ValueError(f"{size} bytes as JSON; at most {MAX_JSON_BYTES} are accepted")
    return value


JsonObject = Annotated[JsonDict, AfterValidator(_check_json)]
JsonList = Annotated[list[Any], AfterValidator(_check_json)]
JsonObjects = Annotated[list[JsonDict], Field(fail_fast=True), AfterValidator(_check_json)]
Content = Text | JsonObject | JsonList
"""A text, or JSON that is written as its text."""


def of_known_type(accepted: tuple[str, ...], refused: dict[str, str]) -> BeforeValidator:
    """Return a validator of objects by their types, with the reasons for the refusal of known types."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind is not None and kind not in accepted:
            why = refused.get(kind) if isinstance(kind, str) else None
            raise wrong(
                "type", f"{shown(kind)} is not supported{f': {why}' if why else ''}; accepted: {', '.join(accepted)}"
            )
        return value

    return BeforeValidator(check)


class JudgementFields(RunFields):
    """The fields of both bodies."""

    chat_template_kwargs: TemplateArguments | None = Field(
        None, description=f"{TEMPLATE_ARGUMENTS} enable_thinking is false unless it is set here."
    )
    explain: ExplainField = EXPLAIN


class OptionProbability(AnswerModel):
    """The probability of one option."""

    probability: float = Field(description="Its share of the probability of all labels.")
