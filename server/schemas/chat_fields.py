"""The fields of a chat that are read by the model's chat template: messages, tools and the end of the prompt."""

from pydantic import Field, model_validator

from lightwell.server.schemas.chat_messages import Messages
from lightwell.server.schemas.chat_templates import PromptEndFields
from lightwell.server.schemas.tools import ToolFields


class ChatFields(PromptEndFields, ToolFields):
    """A conversation, in OpenAI's form."""

    messages: Messages = Field(description="The conversation so far.")

    @model_validator(mode="after")
    def _last_message_can_be_continued(self) -> "ChatFields":
        self.check_continued(self.messages)
        return self
