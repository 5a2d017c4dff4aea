"""The basis of all request and answer schemas: strict types, no unknown fields, the forms a prompt may take."""

import re
from collections.abc import Mapping
from itertools import islice
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError

from lightwell.server.config.auth.quotas import PRIORITIES
from lightwell.server.http.json_reader import MAX_TEXTS, Integers
from lightwell.server.schemas.known_fields import Ignored, RefusedFields

_GROUP = 16
"""Entries of an object that are checked at once."""
MAX_TOKEN_ID = 2**31 - 1
"""A bound for the type only; the vocabulary's own is checked where it is known."""


def wrong(field: str, message: str) -> PydanticCustomError:
    """Return an error about one field, for validators that see the whole body."""
    return PydanticCustomError("wrong_field", "{message}", {"field": field, "message": message})


def check_equal(values: Mapping[str, Any]) -> None:
    """Raise PydanticCustomError, naming both, if two names of one field are given different values; None is not given.

    Clients that serve several versions of a server send a value under its old and its new name.
    """
    given = [(name, value) for name, value in values.items() if value is not None]
    for name, value in given[1:]:
        first, expected = given[0]
        try:
            is_equal = _as_json(value) == _as_json(expected)
        except RecursionError:
            is_equal = False
        if not is_equal:
            raise wrong(name, f"{name} and {first} are both given, but differ; equal values are accepted")


def _as_json(value: Any) -> Any:
    """Return a value that equals another's if JSON calls them equal, as 1 and 1.0: in Python 1 equals true, too."""
    value = vars(value) if isinstance(value, BaseModel) else value
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_as_json, value))
    return (value,) if isinstance(value, bool) else value


def encodable(text: str) -> str:
    """Return the text. Raises ValueError for half a surrogate pair, which JSON can hold but no tokenizer takes and
    no answer could repeat.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text contains a lone surrogate at character {error.start}; Unicode text is accepted"
            ) from None
    return text


Text = Annotated[str, AfterValidator(encodable)]


def in_groups(most: int = MAX_TEXTS) -> WrapValidator:
    """Return a validator that checks the entries of an object in groups, and ends at the first wrong group. It refuses
    more than `most` entries.

    pydantic reports an error for each wrong entry, and a body with 65,536 of them would be read for seconds.
    """

    def check(entries: Any, check_group: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(entries, dict) or len(entries) <= _GROUP:
            return check_group(entries)
        if len(entries) > most:
            lengths = {"field_type": "Dictionary", "max_length": most, "actual_length": len(entries)}
            raise PydanticKnownError("too_long", lengths)
        items = iter(entries.items())
        checked: dict[str, Any] = {}
        while group := dict(islice(items, _GROUP)):
            checked |= check_group(group)
        return checked

    return WrapValidator(check)


JsonDict = Annotated[dict[Text, Any], in_groups()]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


def _unless_known(ids: Any, check_each: ValidatorFunctionWrapHandler) -> list[int]:
    """Take a list unchecked if the parser reported its bounds: checking a million ids takes a tenth of a second."""
    if isinstance(ids, Integers) and ids.least >= 0 and ids.greatest <= MAX_TOKEN_ID:
        return ids
    checked: list[int] = check_each(ids)
    return checked


TokenIds = Annotated[list[TokenId], Field(fail_fast=True), WrapValidator(_unless_known)]
MAX_PROMPTS = 2048
Texts = Annotated[list[Text], Field(fail_fast=True, max_length=MAX_PROMPTS)]
ManyTokenIds = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS)]
PromptInput = Text | TokenIds | Texts | ManyTokenIds

MAX_SELECTED = 65536
Index = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def _range(text: str) -> str:
    if re.fullmatch(r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?", text) is None:
        raise ValueError('"all", an index, a list, or a range such as "0:2" or "-4:" is accepted')
    return text


Range = Annotated[str, AfterValidator(_range)]
"""A range of indices, "start:end" as in Python; each end may be left out."""
Selector = (
    Literal["all"]
    | Range
    | Index
    | Annotated[list[Index], Field(min_length=1, max_length=MAX_SELECTED, fail_fast=True)]
)
"""Layers, heads or positions; negative ones count from the end."""


MAX_FIELDS = 256


class RequestModel(BaseModel):
    """Base of request bodies: JSON types as they are ("1" is not a number, and neither is NaN), unknown fields refused.

    Null is not a value if a field takes none: the field is then absent, as in other servers. Fields of other servers
    that are not ours are left out, or refused if they would change the answer (`server.schemas.known_fields`).
    """

    IGNORED: ClassVar[Ignored] = {}
    REFUSED: ClassVar[RefusedFields] = {}
    _NULLABLE: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        fields = cls.model_fields.items()
        cls._NULLABLE = frozenset(
            name for name, field in fields if field.annotation is Any or NoneType in get_args(field.annotation)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).setdefault("properties", {})
        for name, field in cls.model_fields.items():
            if name not in cls._NULLABLE and not field.is_required():
                own = properties[field.alias or name]
                told = {key: own.pop(key) for key in ("title", "description", "default") if key in own}
                properties[field.alias or name] = {"anyOf": [own, {"type": "null"}], **told}
        properties.update({name: {"description": f"Accepted and ignored: {why}."} for name, why in cls.IGNORED.items()})
        return schema

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:  # otherwise an error could list a million unknown fields
            raise ValueError(f"the object has {len(data)} fields; at most {MAX_FIELDS} are accepted")
        fields = cls.__pydantic_fields__
        if fields.keys() >= data.keys() and None not in data.values():
            return data
        return {name: value for name, value in data.items() if cls._asks_for_something(name, value)}

    @classmethod
    def _asks_for_something(cls, name: str, value: Any) -> bool:
        """Return whether the field has an effect. Raises PydanticCustomError for a refused field."""
        if name in cls.__pydantic_fields__:
            return value is not None or name in cls._NULLABLE
        refused = cls.REFUSED.get(name)
        if refused is not None and not refused.asks_for_nothing(value):
            raise wrong(name, f"not supported: {refused.why}; leave it out")
        return refused is None and name not in cls.IGNORED  # then the name is unknown


class AnswerModel(BaseModel):
    """Base of answers, used to describe them in the OpenAPI page."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class ModelField(RequestModel):
    """The field every POST route has."""

    model: Text | None = Field(
        None,
        description="Name of the model, as GET /v1/models gives it; null, tgi, dummy and text-embeddings-inference are "
        "that one model.",
    )


class RunFields(ModelField):
    """The fields of every POST route that runs the model."""

    timeout: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Seconds after which the request ends with 504, or its stream with an error event; the header "
        "X-Request-Timeout says the same. The server's --request-timeout is the most there is.",
    )
    priority: int = Field(
        0,
        ge=min(PRIORITIES),
        le=max(PRIORITIES),
        description="Of the requests that wait, lower ones go first. Below 0 where the server allows it "
        "(--allow-priority), or the API key's min_priority. Left out it is 0, or that if it is above 0.",
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(encodable)] | None = Field(
        None, description="Share cached prefixes only with requests that send the same salt."
    )


def _not_zero(number: int) -> int:
    if number == 0:
        raise ValueError("0 would remove all tokens; -1, or at least 1, is accepted")
    return number


PromptTokens = Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID), AfterValidator(_not_zero)]
TRUNCATE_PROMPT_TOKENS = (
    "Keep only the last tokens of a prompt, this number at most, including tokens that the tokenizer adds; -1 is the "
    "model's limit."
)


class Usage(AnswerModel):
    """Tokens of one HTTP request, all its prompts and choices together."""

    prompt_tokens: int = Field(description="Tokens of the prompts.")
    completion_tokens: int = Field(0, description="Tokens generated.")
    total_tokens: int = Field(description="Their sum.")
    prompt_tokens_details: dict[str, int] | None = Field(
        None, description='{"cached_tokens": prompt tokens that came from the prefix cache}.'
    )
    completion_tokens_details: dict[str, int] | None = Field(
        None,
        description='{"accepted_prediction_tokens": drafts that became tokens of the answer, '
        '"rejected_prediction_tokens": the others}; only with a prediction.',
    )


class StackSizes(AnswerModel):
    """How many layers and heads one stack has."""

    num_layers: int = Field(description="Blocks.")
    num_heads: int = Field(description="Query heads of a block.")
    num_kv_heads: int = Field(description="Key and value heads of a block.")


Stacks = Annotated[
    dict[str, StackSizes], Field(description="How many layers and heads the model has: decoder, encoder or both.")
]


class ListAnswer(AnswerModel):
    """The first fields of every answer with one entry an input."""

    object: Literal["list"] = Field(description="Kind of answer.")
    model: str = Field(description="Name of the model.")
    compute_dtype: str | None = Field(description="The dtype in which the network computes.")


class InspectionAnswer(ListAnswer):
    """The fields of every answer about a pass over inputs."""

    stacks: Stacks
    usage: Usage = Field(description="Token counts.")


class ErrorDetail(AnswerModel):
    """The details of an error."""

    message: str = Field(description="Names the rejected value and the accepted values.")
    type: str = Field(description="Kind of error.")
    param: str | None = Field(description="The field it is about.")
    code: str | None = Field(description="Stable name of the problem.")


class ErrorAnswer(AnswerModel):
    """The shape of errors, except on routes of APIs with their own shape."""

    error: ErrorDetail = Field(description="The error.")
