"""Grammars of answers in llguidance's dialect of Lark: reasoning, then free text, tool calls, or a body with a grammar
of its own. Independent of requests; it does not load llguidance.

llguidance reads the longest matching lexeme, so the alternatives at one place must be disjoint: free text is defined as
text in which no other alternative begins.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightwell.model.tokenization.chat_formats.call_syntax import ID, ID_CHARACTERS, KINDS, CallSyntax, PairSyntax, Tool
from lightwell.model.tokenization.chat_formats.lark import HEADER, Merged, quoted
from lightwell.model.tokenization.chat_formats.thoughts import Start, ThoughtTags

_LEXEMES = {"ANY": r"/(.|\n)*/", "SPACE": r"/[ \t\r\n]{0,8}/", "SPACES": r"/[ \t\r\n]*/"}
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n]{0,40}"}
"""White space in arguments is limited: otherwise some models write it until the last token."""
_CALL_ID = f"/{ID_CHARACTERS}{{1,64}}/"
_MOST_NOTED = 64
"""Arguments of a tool that llguidance counts. Further ones may be left out and repeated."""
_JSON_LEXEMES = re.compile(r'"[^"]*"|[:,] |.', re.DOTALL)
_SHARED = ("$defs", "definitions", "x-guidance")
"""Keywords at the top of a schema that its parts refer to."""


@dataclass(frozen=True)
class Answers:
    """The permitted answers."""

    tags: ThoughtTags | None = None
    start: Start = Start.ANSWER
    syntax: CallSyntax | None = None
    tools: Sequence[Tool] = ()
    calls: Literal["auto", "required"] = "auto"
    """Whether calls are optional or required."""
    parallel: bool = True
    """Whether several calls are permitted."""
    body: str | None = None
    """The grammar, in the same dialect, of an answer without calls; None is free text."""
    special_ids: Mapping[str, int] | None = None
    """The tokenizer's special tokens with their ids: a special token within a tag is matched as a token."""


def answer_grammar(answers: Answers) -> str:
    """Return the grammar: optional reasoning, then calls, or an answer without calls."""
    if answers.body is not None and answers.syntax is None and answers.start is Start.ANSWER:
        return answers.body
    return _Writer(answers).grammar()


def lenient(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema with llguidance's option to ignore unsupported keywords."""
    return _with_options(schema, {"lenient": True})


def _with_options(schema: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}


class _Writer:
    """Writer of one grammar."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._special_ids = answers.special_ids or {}
        names = sorted(map(re.escape, self._special_ids), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(names)})") if names else None
        self._lexemes = dict(_LEXEMES)
        self._rules: dict[str, str] = {}
        self._merged = Merged(self._rules, self._lexemes)

    def grammar(self) -> str:
        answers = self._answers
        self._rules["start"] = "answer"
        if answers.tags is not None and answers.start in (Start.THOUGHT, Start.MAYBE):
            self._write_thought(answers.tags, is_open=answers.start is Start.THOUGHT)
        self._write_answer()
        rules = [f"{name}: {rule}" for name, rule in self._rules.items()]
        return HEADER + "\n".join([*rules, *(f"{name}: {lexeme}" for name, lexeme in self._lexemes.items())]) + "\n"

    def _write_thought(self, tags: ThoughtTags, *, is_open: bool) -> None:
        answers = self._answers
        opening, closing = self._parts(tags.opening), self._parts(tags.closing)
        self._lexemes["THOUGHT_TEXT"] = "ANY"
        rest = self._until("thought_text", closing)
        begin = [] if is_open else opening
        if begin and not _is_token(begin[0]):
            self._lexemes["THOUGHT_BEGIN"] = f"SPACES {begin[0]}"
            begin = ["THOUGHT_BEGIN", *begin[1:]]
        begin = ["SPACES", *begin] if begin and _is_token(begin[0]) else begin
        self._rules["thought"] = " ".join([*begin, rest])
        starts = ["thought answer" if is_open else f"thought{'*' if _is_token(opening[0]) else '?'} answer"]
        if answers.syntax is not None and answers.syntax.is_tagged:
            # A call may begin within the thought, with all of `opening`: less may be prose.
            first, *more = self._parts(answers.syntax.opening)
            self._rules["called" if _is_token(first) else "called[lazy]"] = f"THOUGHT_TEXT {first}"
            starts.append(" ".join([*begin, "called", *more, "after_opening_0"]))
        if answers.syntax is not None and answers.calls == "auto" and answers.body is None:
            starts.append(" ".join([*begin, "THOUGHT_TEXT"]))
        self._rules["start"] = " | ".join(starts)

    def _until(self, name: str, end: list[str]) -> str:
        """Return any text up to the first of these symbols, with the symbols."""
        if _is_token(end[0]):
            self._lexemes[name.upper()] = "ANY"
            return " ".join([name.upper(), *end])
        self._rules[f"{name}_end[lazy]"] = f"ANY {end[0]}"
        return " ".join([f"{name}_end", *end[1:]])

    def _write_answer(self) -> None:
        answers = self._answers
        tag = space = ""
        if answers.tags is not None and answers.start is not Start.ANSWER:
            tag, space = "".join(f"{part} " for part in self._parts(answers.tags.answer)), "SPACE "
        if answers.syntax is None:
            self._write_body()
            self._rules["answer"] = f"{tag}body" if answers.body is None else f"{tag}{space}body"
            return
        # Calls without an opening begin where the prompt has written it.
        forms = {n: f for n, f in enumerate(answers.syntax.forms) if f.opening or answers.start is Start.TAG}
        for number, form in forms.items():
            self._write_calls(number, form)
        self._rules["calls"] = " | ".join(f"calls_{number}" for number in forms)
        if answers.calls == "required":
            self._rules["answer"] = "calls"
        elif answers.body is not None:
            self._write_body()
            for number, form in forms.items():
                if form.opening and not form.is_tagged:
                    self._rules[f"calls_{number}"] = f"{self._calls_like_json(form)} after_call_{number}"
            self._rules["answer"] = f"calls | {tag}{space}body"
        else:
            self._write_text_or_calls(forms, tag)

    def _calls_like_json(self, syntax: CallSyntax) -> str:
        """Return a call that begins like JSON, in the lexemes of JSON, which a body in JSON shares."""
        heads = enumerate(syntax.heads(syntax.opening, [tool.name for tool in self._answers.tools]))
        calls = [f"{' '.join(map(quoted, _JSON_LEXEMES.findall(head)))} arguments_{i}" for i, head in heads]
        return f"SPACE ({' | '.join(calls)})"

    def _write_body(self) -> None:
        if self._answers.body is None:
            self._lexemes["TEXT"] = self._text_without()
            self._rules["body"] = "TEXT"
        else:
            self._rules["body"] = _nested(self._answers.body)

    def _write_text_or_calls(self, forms: Mapping[int, CallSyntax], tag: str) -> None:
        tags = self._answers.tags
        untagged = [form for form in forms.values() if form.opening and not form.is_tagged]
        heads = [head for form in untagged for head in self._heads(form) or [form.opening]]
        self._lexemes["TEXT"] = self._text_without(*(f"(SPACES {quoted(head)} ANY)" for head in heads))
        if tag and tags is not None and tags.closing:  # calls are separate messages after the text
            texts = [f"{tag}TEXT", *(f"{' '.join(self._parts(other))} TEXT" for other in tags.other_answers)]
            self._rules["answer"] = f"({' | '.join(texts)}) ({' '.join(self._parts(tags.closing))} calls)? | calls"
            return
        options = [f"{tag}TEXT"]
        for number, form in forms.items():
            if tag or not form.is_tagged:
                options.append(f"calls_{number}")
            if not form.is_tagged:
                continue
            trigger, *more = self._parts(form.trigger)
            rest = " ".join([*more, *self._parts(form.opening[len(form.trigger) :]), f"after_opening_{number}"])
            if not re.search(r"\w", form.trigger):  # without a tool's name after it, this tag is text
                for i, head in enumerate(form.heads(form.opening, [tool.name for tool in self._answers.tools])):
                    head = self._triggered(f"TRIGGERED_{number}_{i}", quoted(head))
                    options.append(f"{tag}{head} arguments_{i} after_call_{number}")
                continue
            head = f"TEXT {trigger}"
            if not _is_token(trigger):
                head = self._triggered(f"TRIGGERED_{number}", trigger)
            options.append(f"{tag}{head} {rest}")
            if tags is not None and tags.end.startswith(form.trigger):
                options.append(" ".join([head, *more, *self._parts(tags.end[len(form.trigger) :])]))
        self._rules["answer"] = " | ".join(options)

    def _triggered(self, name: str, trigger: str) -> str:
        """Return the name of a rule: free text up to a text that begins a call."""
        lexeme = self._lexeme(name, f"(ANY {trigger}) & {self._text_without()}")
        self._rules[f"{lexeme.lower()}[lazy]"] = lexeme
        return lexeme.lower()

    def _text_without(self, *others: str) -> str:
        """Return free text in which neither reasoning nor any of the others begins."""
        if "THOUGHT_BEGIN" in self._lexemes:
            others = ("(THOUGHT_BEGIN ANY)", *others)
        return " & ".join(["ANY", *(f"~{other}" for other in others)])

    def _write_calls(self, form_number: int, form: CallSyntax) -> None:
        opening = self._parts(form.opening)
        if opening and not _is_token(opening[0]):
            opening[0] = self._lexeme(f"OPENING_{form_number}", f"SPACE {opening[0]}")
        elif opening:
            opening.insert(0, "SPACE")
        self._rules[f"calls_{form_number}"] = f"{' '.join(opening)} after_opening_{form_number}"
        call = f"call_{form_number}"
        more, closing = [], self._parts(form.closing)
        if self._answers.parallel and form.next_call is not None:
            more = [f"({' '.join([*self._parts(form.next_call), call])})*"]
            if re.match(r"\s", form.next_call.removeprefix(form.closing)):
                closing = self._with_space(form_number, closing)
        if form.optional_end:
            closing = [f"({' '.join(closing)} | {' '.join(self._parts(form.closing + form.optional_end))})"]
        self._rules[f"after_opening_{form_number}"] = f"{call} after_{call}"
        self._rules[f"after_{call}"] = " ".join([*more, *closing]) or '""'
        if heads := self._heads(form):
            lexemes = [self._lexeme(f"HEAD_{number}", f"SPACE {quoted(head)}") for number, head in enumerate(heads)]
            begun = [f"{lexeme} arguments_{number}_inside" for number, lexeme in enumerate(lexemes)]
            self._rules[f"calls_{form_number}"] = f"({' | '.join(begun)}) after_{call}"
        options, optional_id = [], [f"({' '.join(self._parts(form.optional_id))})?"] if form.optional_id else []
        for number, tool in enumerate(self._answers.tools):
            between = self._parts(form.between)
            options.append(" ".join([*self._parts(tool.name), *between, f"arguments_{number}", *optional_id]))
            if f"arguments_{number}" in self._rules:  # all forms have the same arguments
                continue
            if form.pairs is None:
                own = tool.grammar
                self._rules[f"arguments_{number}"] = _json(tool.parameters) if own is None else _nested(own)
            else:
                self._write_pairs(f"arguments_{number}", tool, form.pairs)
        self._rules[call] = " | ".join(options)

    def _heads(self, form: CallSyntax) -> list[str]:
        """Return the texts up to the arguments of a first call, by the tools' numbers, if calls begin like lists and
        without a tag: any other list is text.
        """
        if form.is_tagged or form.pairs is None or not form.pairs.is_python:
            return []
        return [f"{form.opening}{tool.name}{form.between}(" for tool in self._answers.tools]

    def _with_space(self, form_number: int, closing: list[str]) -> list[str]:
        """Return the end of a call with optional white space, after which the answer may end. Some models always write
        a newline there; without this rule they would have to write calls until the last token.
        """
        if not closing or _is_token(closing[-1]):
            return [*closing, "SPACE"]
        return [*closing[:-1], self._lexeme(f"CLOSING_{form_number}", f"{closing[-1]} SPACE")]

    def _lexeme(self, name: str, lexeme: str) -> str:
        """Return the name of a lexeme that all forms share: of two equal lexemes, llguidance would match only one."""
        name = next((each for each, other in self._lexemes.items() if other == lexeme), name)
        self._lexemes[name] = lexeme
        return name

    def _write_pairs(self, rule: str, tool: Tool, syntax: PairSyntax) -> None:
        """Write arguments that are separate, in any order."""
        after = self._parts(syntax.after_value)
        if after:
            self._rules["text_value"] = self._until("value_text", after)
        properties, required = tool.parameters.get("properties") or {}, tool.parameters.get("required") or ()
        names = [name for name in properties if tool.value_grammars.get(name, "") is not None]
        names.sort(key=lambda name: name not in required)  # stable: the others keep their order
        num_required = min(sum(name in required for name in names), _MOST_NOTED)
        pairs = []
        for number, name in enumerate(names):
            pair = self._pair(f"{rule}_{number}", tool, name, syntax)
            noted = f"set_bit({number}) %if bit_clear({number})" if number < _MOST_NOTED else "_"
            pairs.append(f"({pair}) {rule}_rest::{noted}")
        # Some templates write a newline where there are no arguments.
        none = [] if num_required else ['""', '"\\n"']
        arguments = " | ".join([*none, *([f"{rule}_pair::0x0"] if names else [])])
        self._rules[rule] = arguments
        if syntax.is_python:
            self._rules |= {rule: f'"(" {rule}_inside', f"{rule}_inside": f'({arguments}) ")"'}
        if names:
            end = f'"" %if is_ones([0:{num_required}])' if num_required else '""'
            comma = '"," SPACE ' if syntax.is_python else ""
            is_left = f" %if not(is_ones([0:{len(names)}]))" if len(names) <= _MOST_NOTED else ""
            self._rules[f"{rule}_rest::_"] = f"{end}\n  | {comma}{rule}_pair::_{is_left}"
            self._rules[f"{rule}_pair::_"] = "\n  | ".join(pairs)

    def _pair(self, rule: str, tool: Tool, name: str, syntax: PairSyntax) -> str:
        """Return a name and its value, as text if it may be text."""
        schema, kinds = tool.argument(name), tool.kinds(name)
        after = self._parts(syntax.after_value)
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        values = []
        if syntax.is_python:
            return " ".join([*self._parts(name + syntax.after_name), self._value(tool, name)])
        if choices and "string" in kinds:
            written = [each if isinstance(each, str) else json.dumps(each) for each in choices]
            values.append((syntax.after_name, " ".join([f"({' | '.join(map(quoted, written))})", *after])))
        elif "string" in kinds and kinds != KINDS:
            values.append((syntax.after_name, "text_value"))
        if kinds != {"string"} and (syntax.after_name_of_json or "string" not in kinds or kinds == KINDS):
            self._rules[rule] = " ".join([self._value(tool, name), *after])
            values.append((syntax.name_ends[-1], rule))
        heads = [" ".join(self._parts(f"{syntax.before_name}{name}{end}")) for end, _ in values]
        return " | ".join(f"{head} {value}" for head, (_, value) in zip(heads, values, strict=True))

    def _value(self, tool: Tool, name: str) -> str:
        """Return the values of an argument other than texts between tags."""
        if grammar := tool.value_grammars.get(name):
            return self._merged.start_of(grammar)
        shared = {key: tool.parameters[key] for key in _SHARED if key in tool.parameters}
        return _json({**shared, **tool.argument(name)})

    def _parts(self, text: str) -> list[str]:
        """Return a text as symbols of the grammar: special tokens as ids, and strings."""
        if ID in text:
            self._lexemes["CALL_ID"] = _CALL_ID
            before, _, behind = text.partition(ID)
            return [*self._parts(before), "CALL_ID", *self._parts(behind)]
        pieces = [text] if self._special is None else self._special.split(text)
        return [
            f"<[{self._special_ids[piece]}]>" if piece in self._special_ids else quoted(piece)
            for piece in pieces
            if piece
        ]


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(_with_options(schema, _JSON_OPTIONS))}"


def _nested(grammar: str) -> str:
    return f"%lark {{\n{grammar.removeprefix(HEADER)}\n}}"


def _is_token(symbol: str) -> bool:
    return symbol.startswith("<[")
