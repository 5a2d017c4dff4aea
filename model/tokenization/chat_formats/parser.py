"""Parser of an assistant's message in a text that comes in pieces."""

import copy
import re
import secrets
import string
from collections.abc import Callable, Collection, Sequence

from lightwell.model.tokenization.chat_formats.arguments import ArgumentsReader, ObjectReader, num_begun, reader_of
from lightwell.model.tokenization.chat_formats.call_syntax import CallSyntax, Heads, Tool, id_in, num_matched
from lightwell.model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from lightwell.model.tokenization.chat_formats.thoughts import Start, ThoughtTags

_SPACE = " \t\r\n"
"""White space, as in the grammars of answers."""


def new_call_id(form: tuple[str, int]) -> str:
    """Return a new id of this form: its beginning, and the number of random letters and digits after it."""
    beginning, length = form
    return beginning + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


class _Marks:
    """Texts that end the text before them, for example tags."""

    def __init__(self, marks: Collection[str]) -> None:
        self._marks = sorted(marks, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")

    def may_grow(self, mark: str, text: str) -> bool:
        """Return whether more text may turn `mark`, with which a text begins, into a longer mark."""
        return any(each != mark and each.startswith(text) for each in self._marks)

    def num_held(self, text: str) -> int:
        """Return the number of characters at the end that may be the beginning of a mark, or white space before it."""
        if not self._marks:
            return 0
        keep = max(num_begun(text, mark) for mark in self._marks)
        return len(text) - len(text[: len(text) - keep].rstrip(_SPACE))


class TaggedText:
    """The parser of a message that may begin with reasoning and call tools. Without tags and tools, all text is
    content. No text is lost: text that is neither a call nor reasoning is content.

    Reasoning and calls are recognised by the texts around them, which include the white space next to them. A call is
    recognised when its arguments begin; until then its text is held back, as is a possible beginning of a tag.
    """

    def __init__(
        self,
        tags: ThoughtTags | None = None,
        start: Start = Start.ANSWER,
        syntax: CallSyntax | None = None,
        tools: Sequence[Tool] = (),
        special: Collection[str] = (),
    ) -> None:
        """`special` are the special tokens that the text may contain. Those that are not part of a tag are left out."""
        self._tags = tags
        self._tags_of_thought = () if tags is None or not tags.opening else tuple(filter(None, tags.texts))
        self._syntax = syntax
        self._unread = ""
        self._num_pushed = self._num_known = 0
        """Numbers of characters: of all text, and of the known beginning, which is left out of the message."""
        self._is_over = False
        self._new = _NewParts()
        self._ids: tuple[str, ...] = ()
        """The ids of the calls."""
        self._has_content = False
        self._arguments_reader: ArgumentsReader = ObjectReader()
        self._tools = {tool.name: tool for tool in tools}
        forms = () if syntax is None else syntax.forms
        self._heads = {head: of for form in forms for head, of in form.heads(form.opening, self._tools).items()}
        self._form = syntax
        self._special = {*special, *filter(None, () if tags is None else [tags.end])}
        if start is Start.TAG and tags is not None and syntax is not None and syntax.next_call:
            self._special.add(syntax.next_call + tags.answer)  # text after a call that begins like another call
        self._triggers = {form.trigger for form in forms if form.is_tagged}
        # Tags that are special tokens may occur anywhere.
        anywhere = {tag for tag in self._tags_of_thought if tag.startswith(tuple(special))}
        marks = self._triggers | self._special | anywhere
        self._marks = _Marks(marks)
        self._marks_of_thought = _Marks(marks.union(self._tags_of_thought[1:2]))
        self._is_thinking = False
        is_answer = tags is None or start is Start.ANSWER
        self._answer_tags = () if tags is None or is_answer else tuple(filter(None, tags.texts[2:]))
        starts = {Start.THOUGHT: self._before_thought, Start.MAYBE: self._maybe_thought, Start.TAG: self._tagged_answer}
        self._read: Callable[[], bool] = self._answer if is_answer else starts[start]

    def push(self, text: str) -> MessageDelta:
        """Take the next text, and return the new part of the message."""
        self._unread += text
        self._num_pushed += len(text)
        while self._read():
            pass
        return self._new.take()

    def flush(self) -> MessageDelta:
        """End the text, and return the rest of the message."""
        self._is_over = True
        return self.push("")

    def skip(self, text: str) -> None:
        """Read the known beginning of a message. It is left out of the deltas, except for an unfinished call."""
        calls = self.push(text).tool_calls
        if self._read == self._arguments:
            self._new.add_call(calls[-1].index, calls[-1].id, calls[-1].name, calls[-1].arguments)
        self._num_known = self._num_pushed

    def copy(self) -> "TaggedText":
        """Return another parser in the same state."""
        other = copy.copy(self)
        other._new, other._arguments_reader = copy.deepcopy((self._new, self._arguments_reader))
        other._read = getattr(other, self._read.__name__)
        return other

    # Each of these reads a part of the unread text, and returns whether the rest can be read now.

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
        self._is_thinking = True
        return self._skip_space(self._thought)

    def _thought(self) -> bool:
        return self._text(self._marks_of_thought)

    def _before_answer(self) -> bool:
        self._is_thinking = False
        return self._skip_space(self._tagged_answer)

    def _tagged_answer(self) -> bool:
        text = self._unread.lstrip(_SPACE) if self._answer_tags else self._unread
        if not self._is_over and any(tag.startswith(text) for tag in self._answer_tags):
            return False
        tag = next((tag for tag in self._answer_tags if text.startswith(tag)), "")
        self._unread = text.removeprefix(tag) if tag else self._unread
        self._answer_tags, self._read = (), self._answer
        return True

    def _skip_space(self, then: Callable[[], bool]) -> bool:
        self._unread = self._unread.lstrip(_SPACE)
        if not self._unread:
            return False
        self._read = then
        return True

    def _answer(self) -> bool:
        is_untagged = self._syntax is not None and not self._syntax.is_tagged
        if is_untagged and not self._has_content and not self._ids:
            begin = len(self._unread) - len(self._unread.lstrip(_SPACE))
            is_call = self._begin_call(begin, self._heads)
            if is_call is not False:
                return bool(is_call)
        return self._text(self._marks)

    def _text(self, marks: _Marks) -> bool:
        """Read text up to a tag, or up to a possible beginning of one."""
        found = marks.pattern.search(self._unread)
        if found is None:
            self._release(len(self._unread) - (0 if self._is_over else marks.num_held(self._unread)))
            return False
        begin, mark = found.start(), found[0]
        text = self._unread[begin:]
        is_call = self._begin_call(begin, self._heads) if mark in self._triggers else False
        if is_call:
            return True
        if is_call is None or (marks.may_grow(mark, text) and not self._is_over):
            self._release_before(begin)
            return False
        opening, closing = self._tags_of_thought[:2] or ("", "")
        if mark in self._tags_of_thought and (self._is_thinking or mark != closing):
            self._release_before(begin)
            self._unread = text[len(mark) :]
            self._read = self._before_thought if mark == opening else self._before_answer
        elif mark in self._tags_of_thought or mark in self._special:
            self._release(begin)
            self._unread = text[len(mark) :]
        else:
            self._release(begin + 1)  # no call: the next one may begin after this character
        return bool(self._unread)

    def _release(self, number: int) -> None:
        """Add this number of characters to the reasoning or the content."""
        begin = self._num_pushed - len(self._unread)
        text, self._unread = self._unread[:number], self._unread[number:]
        new = text[max(0, self._num_known - begin) :]
        if self._is_thinking:
            self._new.reasoning += new
        else:
            self._new.content += new
            self._has_content = self._has_content or bool(text)

    def _release_before(self, begin: int) -> None:
        """Release the text before a tag, without the white space next to the tag."""
        self._release(len(self._unread[:begin].rstrip(_SPACE)))

    def _begin_call(self, begin: int, heads: Heads) -> bool | None:
        """Begin a call if a head and arguments follow at `begin`. Returns None if that needs more text."""
        text, may_begin = self._unread[begin:], False
        for head, (tool, form) in heads.items():
            length = num_matched(text, head)
            if length is None:
                continue
            rest = text[max(length, 0) :].lstrip("" if form.after_between == ("(",) else _SPACE)  # "f (x)" is prose
            if length >= 0 and rest.startswith(form.after_between):
                self._release_before(begin)
                self._add_call(tool, form, id_in(text[:length], head) if form.has_ids else "")
                self._unread = rest
                return True
            may_begin |= length < 0 or any(each.startswith(rest) for each in form.after_between)
        return None if may_begin and not self._is_over else False

    def _add_call(self, tool: str, form: CallSyntax, call_id: str) -> None:
        while not call_id or call_id in self._ids:  # models repeat ids that contain a counter
            before, colon, number = call_id.rpartition(":")
            is_counted = bool(colon) and number.isdecimal()
            call_id = f"{before}:{int(number) + 1}" if is_counted else new_call_id(form.id_form)
        self._new.add_call(len(self._ids), call_id, tool)
        self._ids = (*self._ids, call_id)
        self._form = form
        self._arguments_reader = reader_of(form, self._tools[tool])
        self._read = self._arguments

    def _arguments(self) -> bool:
        arguments, num_read = self._arguments_reader.read(self._unread, self._is_over)
        self._new.add_arguments(len(self._ids) - 1, arguments)
        self._unread = self._unread[num_read:]
        if self._arguments_reader.is_whole:
            self._read = self._after_call
        return self._arguments_reader.is_whole or bool(arguments) or num_read > 0

    def _after_call(self) -> bool:
        form = self._form
        assert form is not None
        text = self._unread.lstrip(_SPACE)
        length = num_matched(text, form.optional_id)
        if length == -1 and not self._is_over:
            return False
        self._unread = text = text[max(length or 0, 0) :].lstrip(_SPACE)
        heads = {} if form.next_call is None else form.heads(form.next_call.lstrip(_SPACE), self._tools)
        if is_call := self._begin_call(0, heads):
            return True
        closing = form.closing.lstrip(_SPACE)
        whole = closing + form.optional_end
        is_begun = whole.startswith(text)
        if not self._is_over and (is_call is None or is_begun):
            return False
        # If the text ends within the closing tag, the call is complete nevertheless.
        self._unread = "" if is_begun else text.removeprefix(whole if text.startswith(whole) else closing)
        self._read = self._before_thought if self._is_thinking else self._before_answer
        return True


class _NewParts:
    """The parts of the message since the last delta."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self._calls: dict[int, ToolCallDelta] = {}

    def add_call(self, index: int, call_id: str | None, name: str | None, arguments: str = "") -> None:
        self._calls[index] = ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)

    def add_arguments(self, index: int, text: str) -> None:
        before = self._calls.get(index, ToolCallDelta(index=index))
        self.add_call(index, before.id, before.name, before.arguments + text)

    def take(self) -> MessageDelta:
        calls = tuple(call for call in self._calls.values() if call != ToolCallDelta(index=call.index))
        delta = MessageDelta(content=self.content, reasoning=self.reasoning, tool_calls=calls)
        self.content, self.reasoning, self._calls = "", "", {}
        return delta
