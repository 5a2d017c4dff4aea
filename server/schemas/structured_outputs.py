"""The fields for the form of an answer: OpenAI's response_format, vLLM's structured_outputs and its
older guided_* names, llama.cpp's and SGLang's names.

All of them become one `Constraint`. `server.generation.grammars` converts it to a grammar, and refuses a wrong schema
or pattern.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import RequestModel, Text, check_equal, wrong
from lightwell.server.schemas.known_fields import (
    IGNORED_IN_RESPONSE_FORMAT,
    IGNORED_IN_STRUCTURED_OUTPUTS,
    REFUSED_IN_STRUCTURED_OUTPUTS,
)

MAX_TEXTS = 10_000
"""Most texts of a choice."""
Schema = dict[str, Any] | bool | Text
"""A JSON schema, or its text."""
Choices = Annotated[
    list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
]
Kind = Literal["json", "json_object", "regex", "choice", "grammar", "gbnf", "structural_tag"]


class Constraint(NamedTuple):
    """The constraint of an answer's text."""

    field: str
    """The field that says it, by its path in the body."""
    kind: Kind
    value: Any
    whitespace_pattern: str | None = None


class JsonSchemaFormat(RequestModel):
    """OpenAI's description of a schema."""

    IGNORED = IGNORED_IN_RESPONSE_FORMAT

    schema_: dict[str, Any] | bool | None = Field(
        None, alias="schema", description="The JSON schema; null is any JSON object."
    )


class ResponseFormat(RequestModel):
    """The form of an answer."""

    IGNORED = IGNORED_IN_RESPONSE_FORMAT

    type: Literal["text", "json_object", "json_schema", "json", "regex"] = Field(
        description="text: free; json_object: any JSON object; json_schema: JSON that keeps to `json_schema`; json and "
        "regex: a text that keeps to `value` (TGI's names)."
    )
    json_schema: JsonSchemaFormat | None = Field(None, description="With type json_schema.")
    schema_: dict[str, Any] | bool | None = Field(
        None, alias="schema", description="The schema itself, as llama.cpp takes it with either type of JSON."
    )
    value: Schema | None = Field(
        None, description="With json_object and json: the schema, or its text; with regex: the regular expression."
    )

    @model_validator(mode="after")
    def _has_its_schema(self) -> "ResponseFormat":
        if self.type in ("json", "regex") and self.value is None:
            raise wrong("value", f'value is required with type "{self.type}"')
        if self.type in ("text", "json_schema") and self.value is not None:
            raise wrong("value", f'value is accepted with type json_object, json or regex, not with "{self.type}"')
        if self.type == "regex" and not isinstance(self.value, str):
            raise wrong("value", f"a regular expression is accepted, got {shown(self.value)}")
        check_equal({"schema": self.schema_, "value": self.value})
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise wrong("json_schema", 'json_schema is required with type "json_schema"')
        if self.type != "json_schema" and self.json_schema is not None:
            raise wrong("json_schema", f'json_schema is accepted only with type "json_schema", not with "{self.type}"')
        return self

    @property
    def constraint(self) -> Constraint | None:
        """Return the constraint, or None for free text."""
        if self.type == "text":
            return None
        if self.type == "regex":
            return Constraint("response_format.value", "regex", self.value)
        if self.value is not None:
            return Constraint("response_format.value", "json", self.value)
        path, schema = "response_format.schema", self.schema_
        if self.json_schema is not None:
            path, schema = "response_format.json_schema.schema", self.json_schema.schema_
        if schema is None:
            return Constraint("response_format", "json_object", True)
        return Constraint(path, "json", schema)


class StructuredOutputs(RequestModel):
    """vLLM's description of the form of an answer: one of `json`, `json_object`, `regex`, `choice`, `grammar` and
    `structural_tag`.
    """

    IGNORED = IGNORED_IN_STRUCTURED_OUTPUTS
    REFUSED = REFUSED_IN_STRUCTURED_OUTPUTS

    json_: Schema | None = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    regex: Text | None = Field(None, description="A regular expression that all of the text matches.")
    choice: Choices | None = Field(None, description="The texts to choose from.")
    grammar: Text | None = Field(None, description="A grammar in Lark's form or in EBNF (`root ::= ...`).")
    structural_tag: dict[str, Any] | Text | None = Field(
        None, description="Tags between which text keeps to a schema, or the JSON text of this."
    )
    whitespace_pattern: Text | None = Field(
        None, min_length=1, description="With json: a regular expression of the blanks between the parts of JSON."
    )

    @property
    def constraints(self) -> list[Constraint]:
        """Return the constraints of its fields; at most one is accepted."""
        kinds: tuple[Kind, ...] = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
        values = {**vars(self), "json": self.json_, "json_object": self.json_object or None}
        asked = [kind for kind in kinds if values[kind] is not None]
        blanks = self.whitespace_pattern
        return [Constraint(f"structured_outputs.{kind}", kind, values[kind], blanks) for kind in asked]


class CanConstrain(RequestModel):
    """The fields for the form of an answer. Several are accepted if they describe the same form."""

    response_format: ResponseFormat | None = Field(None, description="The form of the answer; null is free text.")
    structured_outputs: StructuredOutputs | None = Field(None, description="Form of the answer, in vLLM's fields.")
    guided_json: Schema | None = Field(None, description="vLLM's older name of structured_outputs.json.")
    guided_regex: Text | None = Field(None, description="vLLM's older name of structured_outputs.regex.")
    guided_choice: Choices | None = Field(None, description="vLLM's older name of structured_outputs.choice.")
    guided_grammar: Text | None = Field(None, description="vLLM's older name of structured_outputs.grammar.")
    guided_whitespace_pattern: Text | None = Field(
        None, min_length=1, description="vLLM's older name of structured_outputs.whitespace_pattern."
    )
    structural_tag: dict[str, Any] | Text | None = Field(
        None, description="The same as structured_outputs.structural_tag."
    )
    json_schema: Schema | None = Field(None, description="A JSON schema, or its text, as llama.cpp and SGLang take it.")
    grammar: Text | None = Field(None, description="A grammar in llama.cpp's form, GBNF.")
    regex: Text | None = Field(None, description="A regular expression, as SGLang takes it.")
    ebnf: Text | None = Field(None, description="A grammar in EBNF, as SGLang takes it.")

    @property
    def constraints(self) -> list[Constraint]:
        """Return the constraints of all fields."""
        blanks = self.guided_whitespace_pattern
        named: tuple[tuple[str, Kind, Any], ...] = (
            ("guided_json", "json", self.guided_json),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_choice", "choice", self.guided_choice),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("structural_tag", "structural_tag", self.structural_tag),
            ("json_schema", "json", self.json_schema),
            ("grammar", "gbnf", self.grammar),
            ("regex", "regex", self.regex),
            ("ebnf", "grammar", self.ebnf),
        )
        # Some clients send empty texts for absent values.
        found = [Constraint(name, kind, value, blanks) for name, kind, value in named if value not in (None, "")]
        if self.response_format is not None and self.response_format.constraint is not None:
            found.append(self.response_format.constraint)
        return found + ([] if self.structured_outputs is None else self.structured_outputs.constraints)

    @property
    def constraint(self) -> Constraint | None:
        """Return the constraint of the answer, or None for free text."""
        return next(iter(self.constraints), None)

    @model_validator(mode="after")
    def _has_one_constraint(self) -> "CanConstrain":
        check_equal({each.field: each[1:] for each in self.constraints})
        return self
