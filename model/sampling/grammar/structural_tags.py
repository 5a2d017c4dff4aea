"""Grammars of structural tags: free text in which a trigger begins a part that follows a schema."""

from collections.abc import Mapping
from typing import Any

from lightwell.model.sampling.grammar.errors import GrammarError, step
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.sampling.grammar.places import is_text, shown
from lightwell.model.tokenization.chat_formats.lark import HEADER, Merged, quoted

MAX_TAGS = 200
"""Largest number of tags."""
MAX_CHARACTERS = 500_000
"""Largest number of characters in the grammars of all schemas together. llguidance uses 100 bytes of memory for each
character; its time grows faster than their number.
"""
ANY_TEXT = r"/(?s:.*)/"


def structural_tag_grammar(tag: Mapping[str, Any]) -> str:
    """Return the grammar of a structural tag in either of vLLM's two forms."""
    if not isinstance(tag, Mapping):
        raise GrammarError("", f"a structural tag must be an object (got {shown(tag)})")
    if "structures" in tag or "triggers" in tag:
        _only(tag, "", {"structures", "triggers", "type"})
        structures = _list(tag, "", "structures")
        tags = []
        for number, structure in enumerate(structures):
            path = f".structures[{number}]"
            _only(structure, path, {"begin", "schema", "end"})
            content = {"type": "json_schema", "json_schema": _needed(structure, path, "schema")}
            tags.append((path, {"begin": structure.get("begin"), "content": content, "end": structure.get("end", "")}))
        try:
            return _Tags().triggered(tags, _list(tag, "", "triggers"), ".triggers")
        except GrammarError as error:
            raise GrammarError(error.path.replace(".content.json_schema", ".schema", 1), error.message) from None
    if tag.get("type") != "structural_tag":
        raise GrammarError(".type", 'it must be "structural_tag", with a format; or send structures and triggers')
    _only(tag, "", {"type", "format"})
    form = _needed(tag, "", "format")
    if isinstance(form, Mapping) and form.get("type") == "triggered_tags":
        _only(form, ".format", {"type", "triggers", "tags", "at_least_one", "stop_after_first"})
        tags = [(f".format.tags[{number}]", inner) for number, inner in enumerate(_list(form, ".format", "tags"))]
        return _Tags().triggered(
            tags,
            _list(form, ".format", "triggers"),
            ".format.triggers",
            bool(form.get("at_least_one")),
            bool(form.get("stop_after_first")),
        )
    writer = _Tags()
    return writer.written(writer.content(form, ".format", 0))


class _Tags:
    """The rules of a structural tag's grammar under construction."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._lexemes: dict[str, str] = {}
        self._merged = Merged(self._rules, self._lexemes)
        self._num_characters = 0

    def written(self, start: str) -> str:
        lines = [f"{name}: {body}" for name, body in {"start": start, **self._rules, **self._lexemes}.items()]
        return HEADER + "\n".join(lines) + "\n"

    def rule(self, body: str, options: str = "") -> str:
        name = f"s{len(self._rules)}"
        self._rules[name + options] = body
        return name

    def schema(self, schema: object, path: str) -> str:
        """Add the rules of a schema, and return the name of the first."""
        try:
            grammar = json_schema_grammar(schema)
        except GrammarError as error:
            raise GrammarError(path + error.path, error.message) from None
        self._num_characters += sum(map(len, grammar.splitlines()[1:]))
        if self._num_characters > MAX_CHARACTERS:
            raise GrammarError(
                path,
                f"with this schema, the grammar of all tags has {self._num_characters} characters; at most "
                f"{MAX_CHARACTERS} are accepted",
            )
        return self._merged.start_of(grammar)

    def triggered(
        self,
        tags: list[tuple[str, Any]],
        triggers: list[Any],
        path: str,
        at_least_one: bool = False,
        only: bool = False,
    ) -> str:
        """Write free text in which each trigger begins a tag."""
        for number, trigger in enumerate(triggers):
            if not isinstance(trigger, str) or not trigger or not is_text(trigger):
                raise GrammarError(
                    f"{path}[{number}]", f"a trigger must be a text of at least one character (got {shown(trigger)})"
                )
        choices: list[str] = []
        for place, tag in tags:
            begin = _text(tag, place, "begin")
            trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
            if trigger is None:
                raise GrammarError(f"{place}.begin", f"{shown(begin)} does not begin with any of the triggers")
            head = self.rule(f"HEAD_{len(choices)}", "[lazy]")
            self._lexemes[f"HEAD_{len(choices)}"] = f"{ANY_TEXT} {quoted(trigger)}"
            rest = quoted(begin[len(trigger) :]) if begin != trigger else ""
            choices.append(self.rule(f"{head} {rest} {self.ended(tag, place)}"))
        any_tag = self.rule(" | ".join(choices))
        text = self.rule("TEXT")
        self._lexemes["TEXT"] = ANY_TEXT
        if only:
            return self.written(any_tag if at_least_one else f"{any_tag} | {text}")
        return self.written(f"{any_tag}{'+' if at_least_one else '*'} {text}")

    def ended(self, tag: Mapping[str, Any], path: str, depth: int = 0) -> str:
        """Write a tag's content and end."""
        _only(tag, path, {"type", "begin", "content", "end"})
        end = _text(tag, path, "end")
        content = _needed(tag, path, "content")
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            if not end:
                raise GrammarError(f"{path}.end", "free text needs an end of at least one character")
            name = f"UNTIL_{len(self._lexemes)}"
            self._lexemes[name] = f"{ANY_TEXT} {quoted(end)}"
            return self.rule(name, "[lazy]")
        return f"{self.content(content, path + '.content', depth + 1)} {quoted(end) if end else ''}"

    def content(self, form: Any, path: str, depth: int) -> str:
        """Write one format of the newer form."""
        kind = form.get("type") if isinstance(form, Mapping) else None
        if depth > 20:
            raise GrammarError(path, "formats may be nested at most 20 levels deep")
        if kind == "json_schema":
            _only(form, path, {"type", "json_schema"})
            return self.schema(_needed(form, path, "json_schema"), path + ".json_schema")
        if kind == "const_string":
            return quoted(_text(form, path, "value"))
        if kind == "tag":
            return self.rule(f"{quoted(_text(form, path, 'begin'))} {self.ended(form, path, depth)}")
        if kind in {"sequence", "or"}:
            elements = _list(form, path, "elements")
            inner = [self.content(e, f"{path}.elements[{n}]", depth + 1) for n, e in enumerate(elements)]
            return self.rule((" " if kind == "sequence" else " | ").join(inner))
        raise GrammarError(
            path,
            f"the format {shown(kind)} is not supported; supported are json_schema, const_string, tag, sequence and"
            " or; triggered_tags as the whole format; any_text in a tag",
        )


def _needed(form: Mapping[str, Any], path: str, name: str) -> Any:
    if name not in form:
        raise GrammarError(path + step(name), "it is missing")
    return form[name]


def _text(form: Any, path: str, name: str) -> str:
    if not isinstance(form, Mapping):
        raise GrammarError(path, f"it must be an object (got {shown(form)})")
    value = _needed(form, path, name)
    if not isinstance(value, str) or not is_text(value) or len(value) > 1000:
        raise GrammarError(path + step(name), f"it must be a text of at most 1000 characters (got {shown(value)})")
    return value


def _list(form: Mapping[str, Any], path: str, name: str) -> list[Any]:
    value = _needed(form, path, name)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TAGS:
        raise GrammarError(path + step(name), f"it must be an array of 1 to {MAX_TAGS} (got {shown(value)})")
    return value


def _only(form: Any, path: str, names: set[str]) -> None:
    if not isinstance(form, Mapping):
        raise GrammarError(path, f"it must be an object (got {shown(form)})")
    for name in form:
        if name not in names:
            raise GrammarError(path + step(str(name)), f"it is not supported; {', '.join(sorted(names))} are")
