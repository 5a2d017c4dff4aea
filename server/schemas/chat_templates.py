"""Defines what a client may tell the chat template."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from server.schemas.base import Text

MAX_TEMPLATE_ARGUMENTS = 32


def _check_template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(arguments.keys() & {"messages", "tools", "documents", "add_generation_prompt"})
    if taken:
        raise ValueError(f"{taken[0]} is no argument of the client's; names of the model's own chat template are")
    return arguments


TemplateArguments = Annotated[
    dict[Text, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS), AfterValidator(_check_template_arguments)
]
TEMPLATE_ARGUMENTS = (
    "Further variables of the model's chat template, such as enable_thinking; the model's card says which there are."
)
