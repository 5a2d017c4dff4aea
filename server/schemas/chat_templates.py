"""Fields of a body for the chat template: its variables, and where the prompt ends."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import RequestModel, Text, in_groups, wrong
from lightwell.server.schemas.chat_messages import ChatMessage

MAX_TEMPLATE_ARGUMENTS = 32


def _check_template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(arguments.keys() & {"messages", "tools", "documents", "add_generation_prompt"})
    if taken:
        raise ValueError(f"{taken[0]} is reserved; other variables of the model's chat template are accepted")
    return arguments


TemplateArguments = Annotated[
    dict[Text, Any],
    Field(max_length=MAX_TEMPLATE_ARGUMENTS),
    in_groups(MAX_TEMPLATE_ARGUMENTS),
    AfterValidator(_check_template_arguments),
]
TEMPLATE_ARGUMENTS = (
    "Further variables of the model's chat template, such as enable_thinking; the model card lists them."
)

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Names of the switch of thinking: for Qwen3 and GLM, and for DeepSeek and Granite. Templates ignore the other."""


class PromptEndFields(RequestModel):
    """Fields for the end of the prompt."""

    add_generation_prompt: bool = Field(True, description="Let the template open the assistant's answer.")
    continue_final_message: bool = Field(
        False,
        description="Continue the last message, which is the assistant's, in place of a new answer; "
        "add_generation_prompt is then false.",
    )
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)

    def check_continued(self, messages: Sequence[ChatMessage]) -> None:
        """Raise PydanticCustomError if `continue_final_message` is set and the last message cannot be continued."""
        if not self.continue_final_message:
            return
        if self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set:
            raise wrong("add_generation_prompt", "add_generation_prompt must be false with continue_final_message true")
        last = len(messages) - 1
        if messages[last].role != "assistant" or messages[last].tool_calls:
            got = "it calls tools" if messages[last].tool_calls else f"its role is {shown(messages[last].role)}"
            raise wrong(
                f"messages[{last}]", f"{got}; continue_final_message continues a message of the assistant without calls"
            )

    @property
    def opens_answer(self) -> bool:
        return self.add_generation_prompt and not self.continue_final_message
