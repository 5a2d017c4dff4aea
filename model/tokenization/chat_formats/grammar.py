"""Writes grammars of answers in llguidance's dialect of Lark: reasoning, then free text, tool calls, or a body that has
its own grammar. It knows no request, and does not load llguidance.

llguidance reads the longest lexeme that matches, so what may stand in the same place is kept apart here: free text is
defined as that in which nothing else begins.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from model.tokenization.chat_formats.call_syntax import CallSyntax, PairSyntax, Tool
from model.tokenization.chat_formats.thoughts import Start, ThoughtTags

HEADER = "%llguidance {}\n"
"""The first line of a grammar, which says that it is in this dialect."""

_LEXEMES = {"ANY": r"/(.|\n)*/", "SPACE": r"/[ \t\r\n]{0,8}/", "SPACES": r"/[ \t\r\n]*/"}
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n]{0,16}"}
"""White space in arguments has an end: a model that has nothing to say would else write it until the last token."""
_SHARED = ("$defs", "definitions", "x-guidance")
"""What parts of a schema refer to, which stands at its top."""


@dataclass(frozen=True)
class Answers:
    """What may be answered."""

    tags: ThoughtTags | None = None
    start: Start = Start.ANSWER
    syntax: CallSyntax | None = None
    tools: Sequence[Tool] = ()
    calls: Literal["auto", "required"] = "auto"
    """Whether there may be calls, or must be."""
    parallel: bool = True
    """Whether there may be several."""
    body: str | None = None
    """The grammar, in this dialect too, of an answer that calls no tool; None is free text."""
    special_ids: Mapping[str, int] | None = None
    """The tokenizer's special tokens with their ids: where one is part of a tag it is matched as the token."""


def answer_grammar(answers: Answers) -> str:
    """Return the grammar: reasoning, if there may be any, and then calls, or what is no call."""
    if answers.body is not None and answers.syntax is None and answers.start is Start.ANSWER:
        return answers.body
    return _Writer(answers).grammar()


def lenient(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema of which a grammar leaves out what it cannot hold, in place of being refused."""
    return _with_options(schema, {"lenient": True})


def _with_options(schema: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    own = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **options}}


class _Writer:
    """Writes one grammar, rule by rule."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._special_ids = answers.special_ids or {}
        names = sorted(map(re.escape, self._special_ids), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(names)})") if names else None
        self._lexemes = dict(_LEXEMES)
        self._rules: dict[str, str] = {}

    def grammar(self) -> str:
        answers = self._answers
        self._rules["start"] = "answer"
        if answers.tags is not None and answers.start is not Start.ANSWER:
            self._write_thought(answers.tags, is_open=answers.start is Start.THOUGHT)
            self._rules["start"] = "thought answer" if answers.start is Start.THOUGHT else "thought? answer"
        self._write_answer()
        rules = [f"{name}: {rule}" for name, rule in self._rules.items()]
        return HEADER + "\n".join([*rules, *(f"{name}: {lexeme}" for name, lexeme in self._lexemes.items())]) + "\n"

    def _write_thought(self, tags: ThoughtTags, *, is_open: bool) -> None:
        opening, closing = self._parts(tags.opening), self._parts(tags.closing)
        if _is_token(closing[0]):
            rest = " ".join(["THOUGHT_TEXT", *closing])
            self._lexemes["THOUGHT_TEXT"] = "ANY"
        else:
            rest = " ".join(["thought_end", *closing[1:]])
            self._rules["thought_end[lazy]"] = f"ANY {closing[0]}"
        if is_open:
            self._rules["thought"] = rest
        elif _is_token(opening[0]):
            self._rules["thought"] = " ".join([*opening, rest])
        else:
            self._lexemes["THOUGHT_BEGIN"] = f"SPACES {opening[0]}"
            self._rules["thought"] = " ".join(["THOUGHT_BEGIN", *opening[1:], rest])

    def _write_answer(self) -> None:
        answers = self._answers
        tag = space = ""
        if answers.tags is not None and answers.start is not Start.ANSWER:
            tag, space = "".join(f"{part} " for part in self._parts(answers.tags.answer)), "SPACE "
        if answers.syntax is None:
            self._write_body()
            self._rules["answer"] = f"{tag}body" if answers.body is None else f"{tag}{space}body"
            return
        self._write_calls(answers.syntax)
        if answers.calls == "required":
            self._rules["answer"] = "calls"
        elif answers.body is not None:
            self._write_body()
            self._rules["answer"] = f"calls | {tag}{space}body"
        elif not answers.syntax.is_tagged:
            self._lexemes["TEXT"] = self._text_without(f"(SPACES {_quoted(answers.syntax.opening)} ANY)")
            self._rules["answer"] = f"{tag}TEXT | calls"
        else:
            self._write_text_or_calls(answers.syntax, tag)

    def _write_body(self) -> None:
        if self._answers.body is None:
            self._lexemes["TEXT"] = self._text_without()
            self._rules["body"] = "TEXT"
        else:
            self._rules["body"] = _nested(self._answers.body)

    def _write_text_or_calls(self, syntax: CallSyntax, tag: str) -> None:
        trigger, *more = self._parts(syntax.trigger)
        rest = " ".join([*more, *self._parts(syntax.opening[len(syntax.trigger) :]), "calls_after_opening"])
        self._lexemes["TEXT"] = self._text_without()
        if _is_token(trigger):
            self._rules["answer"] = f"{tag}TEXT ({trigger} {rest})?"
            return
        self._lexemes["TRIGGERED"] = f"(ANY {trigger}) & {self._text_without()}"
        self._rules["triggered[lazy]"] = "TRIGGERED"
        self._rules["answer"] = f"{tag}TEXT | {tag}triggered {rest}"

    def _text_without(self, *others: str) -> str:
        """Return free text in which no reasoning begins, nor any of the others."""
        if "THOUGHT_BEGIN" in self._lexemes:
            others = ("(THOUGHT_BEGIN ANY)", *others)
        return " & ".join(["ANY", *(f"~{other}" for other in others)])

    def _write_calls(self, syntax: CallSyntax) -> None:
        opening = self._parts(syntax.opening)
        if not _is_token(opening[0]):
            self._lexemes["OPENING"] = f"SPACE {opening[0]}"
            opening[0] = "OPENING"
        else:
            opening.insert(0, "SPACE")
        openings = " ".join(opening)
        if syntax.prefix:
            openings = f"({openings} | {' '.join(self._parts(syntax.prefix + syntax.opening))})"
        self._rules["calls"] = f"{openings} calls_after_opening"
        calls, closing = ["call"], self._parts(syntax.closing)
        if self._answers.parallel and syntax.next_call is not None:
            calls.append(f"({' '.join([*self._parts(syntax.next_call), 'call'])})*")
            if re.match(r"\s", syntax.next_call.removeprefix(syntax.closing)):
                closing = self._with_space(closing)
        self._rules["calls_after_opening"] = " ".join([*calls, *closing])
        options = []
        for number, tool in enumerate(self._answers.tools):
            between = self._parts(syntax.between)
            options.append(" ".join([*self._parts(tool.name), *between, f"arguments_{number}"]))
            if syntax.pairs is None:
                own = tool.grammar
                self._rules[f"arguments_{number}"] = _json(tool.parameters) if own is None else _nested(own)
            else:
                self._write_pairs(f"arguments_{number}", tool, syntax.pairs)
        self._rules["call"] = " | ".join(options)

    def _with_space(self, closing: list[str]) -> list[str]:
        """Return the end of a call with white space after it, which may end the answer: a model that writes a newline
        there, as some do always, would else have to call again, and again after that, until the last token.
        """
        if not closing or _is_token(closing[-1]):
            return [*closing, "SPACE"]
        self._lexemes["CLOSING"] = f"{closing[-1]} SPACE"
        return [*closing[:-1], "CLOSING"]

    def _write_pairs(self, rule: str, tool: Tool, syntax: PairSyntax) -> None:
        """Write arguments that stand one by one, in the order of the schema."""
        after = self._parts(syntax.after_value)
        if _is_token(after[0]):
            self._lexemes["VALUE_TEXT"] = "ANY"
            self._rules["text_value"] = " ".join(["VALUE_TEXT", *after])
        else:
            self._rules["text_value_end[lazy]"] = f"ANY {after[0]}"
            self._rules["text_value"] = " ".join(["text_value_end", *after[1:]])
        required = tool.parameters.get("required") or ()
        pairs = []
        for number, name in enumerate(tool.parameters.get("properties") or {}):
            schema, value = tool.argument(name), f"{rule}_{number}"
            head = " ".join(self._parts(f"{syntax.before_name}{name}{syntax.after_name}"))
            pairs.append(f"({head} {value}){'' if name in required else '?'}")
            choices = [schema["const"]] if "const" in schema else schema.get("enum")
            if not tool.is_text(name):
                shared = {key: tool.parameters[key] for key in _SHARED if key in tool.parameters}
                self._rules[f"{value}_json"] = _json({**shared, **schema})
                self._rules[value] = " ".join([f"{value}_json", *after])
            elif choices:
                self._rules[value] = " ".join([f"({' | '.join(map(_quoted, choices))})", *after])
            else:
                self._rules[value] = "text_value"
        self._rules[rule] = " ".join(pairs) or '""'

    def _parts(self, text: str) -> list[str]:
        """Return a text as symbols of the grammar: special tokens by their ids, and strings."""
        pieces = [text] if self._special is None else self._special.split(text)
        return [
            f"<[{self._special_ids[piece]}]>" if piece in self._special_ids else _quoted(piece)
            for piece in pieces
            if piece
        ]


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(_with_options(schema, _JSON_OPTIONS))}"


def _nested(grammar: str) -> str:
    return f"%lark {{\n{grammar.removeprefix(HEADER)}\n}}"


def _is_token(symbol: str) -> bool:
    return symbol.startswith("<[")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which Lark does not take as it is
