"""Reads an assistant's message out of its text as that comes."""

from typing import Protocol

from model.tokenization.chat_formats.message import MessageDelta


class MessageParser(Protocol):
    """Reads one message. Nothing of the text is lost: what turns out to be no call and no reasoning is content."""

    def push(self, text: str) -> MessageDelta:
        """Return what is known of the message now that `text` has come, and was not before."""
        ...

    def flush(self) -> MessageDelta:
        """Return what is left when the text is over."""
        ...


class PlainText:
    """The parser of a message that is all content."""

    def push(self, text: str) -> MessageDelta:
        """Return the text."""
        return MessageDelta(content=text)

    def flush(self) -> MessageDelta:
        """Return nothing: all of the text was content at once."""
        return MessageDelta()
