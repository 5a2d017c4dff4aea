"""Reads an assistant's message out of its text as that comes."""

import secrets
import string
from collections.abc import Callable, Sequence
from typing import Protocol

from model.tokenization.chat_formats.arguments import ArgumentsReader, BareReader, ObjectReader, PairReader
from model.tokenization.chat_formats.call_syntax import CallSyntax, Tool
from model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from model.tokenization.chat_formats.thoughts import Start, ThoughtTags

_SPACE = " \t\r\n"
"""White space, as the grammars of answers have it."""


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


def new_call_id(form: tuple[str, int]) -> str:
    """Return a new id: what it begins with, and so many random letters and digits."""
    beginning, length = form
    return beginning + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


class TaggedText:
    """The parser of a message that may begin with reasoning, and may call tools.

    Reasoning and calls are told by the texts around them; white space next to these belongs to them. A call is known as
    one once its arguments begin: what is before is held back until then, and nothing else but what may begin a tag.
    """

    def __init__(
        self,
        tags: ThoughtTags | None = None,
        start: Start = Start.ANSWER,
        syntax: CallSyntax | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        self._tags = tags
        self._syntax = syntax
        self._unread = ""
        self._is_over = False
        self._new = _NewParts()
        self._num_calls = 0
        self._has_content = False
        self._arguments_reader: ArgumentsReader = ObjectReader()
        self._tools = {tool.name: tool for tool in tools}
        if syntax is not None:
            first = {syntax.opening, syntax.prefix + syntax.opening}
            self._first_heads = syntax.heads(first, self._tools)
            self._next_heads = {} if syntax.next_call is None else syntax.heads([syntax.next_call], self._tools)
        self._answer_tag = "" if tags is None or start is Start.ANSWER else tags.answer
        starts = {Start.THOUGHT: self._before_thought, Start.MAYBE: self._maybe_thought, Start.ANSWER: self._answer}
        self._read: Callable[[], bool] = starts[start] if tags is not None else self._answer

    def push(self, text: str) -> MessageDelta:
        """Return what is known of the message now that `text` has come, and was not before."""
        self._unread += text
        while self._read():
            pass
        return self._new.take()

    def flush(self) -> MessageDelta:
        """Return what is left when the text is over."""
        self._is_over = True
        return self.push("")

    def skip(self, text: str) -> None:
        """Read the beginning of a message, which is known: it is left out, but for a call that it leaves unfinished."""
        for call in self.push(text).tool_calls:
            self._new.add_call(call.index, call.id, call.name, call.arguments)
        self._new.known = self._unread

    # Each of these reads a part of what is unread, and returns whether there may be more to read in it.

    def _maybe_thought(self) -> bool:
        assert self._tags is not None
        text = self._unread.lstrip(_SPACE)
        if text.startswith(self._tags.opening):
            self._unread = text[len(self._tags.opening) :]
            self._read = self._before_thought
            return True
        if self._tags.opening.startswith(text) and not self._is_over:
            return False
        self._read = self._tagged_answer
        return True

    def _before_thought(self) -> bool:
        return self._skip_space(self._thought)

    def _thought(self) -> bool:
        assert self._tags is not None
        thought, closing, rest = self._unread.partition(self._tags.closing)
        if closing:
            self._new.reasoning += thought.rstrip(_SPACE)
            self._unread, self._read = rest, self._before_answer
            return True
        self._new.reasoning += self._released(self._tags.closing)
        return False

    def _before_answer(self) -> bool:
        return self._skip_space(self._tagged_answer)

    def _tagged_answer(self) -> bool:
        if self._answer_tag.startswith(self._unread) and not self._is_over and self._answer_tag:
            return False
        self._unread = self._unread.removeprefix(self._answer_tag)
        self._answer_tag, self._read = "", self._answer
        return True

    def _skip_space(self, then: Callable[[], bool]) -> bool:
        self._unread = self._unread.lstrip(_SPACE)
        if not self._unread:
            return False
        self._read = then
        return True

    def _answer(self) -> bool:
        if self._syntax is None or not (self._syntax.is_tagged or self._is_at_start):
            self._add_content(self._unread)
            self._unread = ""
            return False
        if not self._syntax.is_tagged:
            begin = len(self._unread) - len(self._unread.lstrip(_SPACE))
        else:
            begin = self._unread.find(self._syntax.trigger)
            if begin < 0:
                self._add_content(self._released(self._syntax.trigger))
                return False
        return self._maybe_call(begin)

    @property
    def _is_at_start(self) -> bool:
        return not self._has_content and not self._num_calls

    def _maybe_call(self, begin: int) -> bool:
        """Read what looks like a call from `begin` on."""
        text = self._unread[begin:]
        if self._begin_call(text, self._first_heads):
            return True
        if not self._is_over and self._may_begin(text, self._first_heads):
            self._add_content(self._unread[:begin].rstrip(_SPACE))
            self._unread = self._unread[len(self._unread[:begin].rstrip(_SPACE)) :]
            return False
        self._add_content(self._unread[: begin + 1])  # no call: the next may begin after this character
        self._unread = self._unread[begin + 1 :]
        return bool(self._unread)

    def _begin_call(self, text: str, heads: dict[str, str]) -> bool:
        """Begin a call if `text`, the end of what is unread, begins with a head and arguments."""
        assert self._syntax is not None
        starts = self._syntax.after_between
        head = next((each for each in heads if text.startswith(each) and text.startswith(starts, len(each))), None)
        if head is None:
            return False
        name = heads[head]
        self._add_content(self._unread[: len(self._unread) - len(text)].rstrip(_SPACE))
        self._new.add_call(self._num_calls, new_call_id(self._syntax.id_form), name)
        self._num_calls += 1
        self._unread = text[len(head) :]
        if self._syntax.pairs is not None:
            self._arguments_reader = PairReader(self._syntax.pairs, self._tools[name].is_text)
        else:
            self._arguments_reader = ObjectReader() if self._syntax.bare is None else BareReader(self._syntax.bare)
        self._read = self._arguments
        return True

    def _may_begin(self, text: str, heads: dict[str, str]) -> bool:
        """Return whether `text` may become one of the heads with arguments after it."""
        assert self._syntax is not None
        starts = self._syntax.after_between
        return any(
            head.startswith(text)
            or (text.startswith(head) and any(start.startswith(text[len(head) :]) for start in starts))
            for head in heads
        )

    def _arguments(self) -> bool:
        arguments, num_read = self._arguments_reader.read(self._unread, self._is_over)
        self._new.add_arguments(self._num_calls - 1, arguments)
        self._unread = self._unread[num_read:]
        if self._arguments_reader.is_whole:
            self._read = self._after_call
        return self._arguments_reader.is_whole or num_read > 0

    def _after_call(self) -> bool:
        assert self._syntax is not None
        if self._begin_call(self._unread, self._next_heads):
            return True
        closing = self._syntax.closing
        if self._may_begin(self._unread, self._next_heads) or closing.startswith(self._unread):
            if not self._is_over:
                return False
            self._unread = ""  # cut within the tag: the call was whole
        self._unread = self._unread.removeprefix(closing)
        self._read = self._before_answer
        return True

    def _released(self, tag: str) -> str:
        """Take from what is unread all that cannot be white space before a tag, or the beginning of the tag."""
        keep = 0
        if not self._is_over:
            text = self._unread
            keep = next(n for n in range(min(len(text), len(tag) - 1), -1, -1) if text.endswith(tag[:n]))
            keep += len(text) - keep - len(text[: len(text) - keep].rstrip(_SPACE))
        released, self._unread = self._unread[: len(self._unread) - keep], self._unread[len(self._unread) - keep :]
        return released

    def _add_content(self, text: str) -> None:
        self._new.content += text
        self._has_content = self._has_content or bool(text)


class _NewParts:
    """What came since the last delta."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.known = ""
        """The text that is left out where content or reasoning begins with it."""
        self._calls: dict[int, ToolCallDelta] = {}

    def add_call(self, index: int, call_id: str | None, name: str | None, arguments: str = "") -> None:
        self._calls[index] = ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)

    def add_arguments(self, index: int, text: str) -> None:
        before = self._calls.get(index, ToolCallDelta(index=index))
        self._calls[index] = ToolCallDelta(
            index=index, id=before.id, name=before.name, arguments=before.arguments + text
        )

    def take(self) -> MessageDelta:
        calls = tuple(call for call in self._calls.values() if call != ToolCallDelta(index=call.index))
        content, reasoning = (self._without_known(text) for text in (self.content, self.reasoning))
        delta = MessageDelta(content=content, reasoning=reasoning, tool_calls=calls)
        self.content, self.reasoning, self._calls = "", "", {}
        return delta

    def _without_known(self, text: str) -> str:
        if self.known.startswith(text):
            self.known = self.known[len(text) :]
            return ""
        known, self.known = self.known, ""
        return text.removeprefix(known)
