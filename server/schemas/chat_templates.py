"""Defines the fields of a body that say how the chat template writes a conversation."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from server.schemas.base import ChatMessage, RequestModel, Text, wrong

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

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""The names of the switch of thinking in templates, which ignore what they do not name: Qwen3 and GLM, and DeepSeek and
Granite.
"""


class PromptEndFields(RequestModel):
    """The fields that say where the prompt ends."""

    add_generation_prompt: bool = Field(True, description="Let the template open the assistant's answer.")
    continue_final_message: bool = Field(
        False,
        description="Continue the last message, which is the assistant's, in place of a new answer; "
        "add_generation_prompt is then false.",
    )
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)

    def check_continued(self, messages: Sequence[ChatMessage]) -> None:
        """Raise PydanticCustomError unless the last message can be continued, if it is to be."""
        if not self.continue_final_message:
            return
        if self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set:
            raise wrong("add_generation_prompt", "add_generation_prompt is false with continue_final_message true")
        last = len(messages) - 1
        if messages[last].role != "assistant" or messages[last].tool_calls:
            got = "it calls tools" if messages[last].tool_calls else f"its role is {messages[last].role!r}"
            raise wrong(
                f"messages[{last}]", f"{got}; continue_final_message continues a message of the assistant without calls"
            )

    @property
    def opens_answer(self) -> bool:
        """Return whether the template opens an answer."""
        return self.add_generation_prompt and not self.continue_final_message
