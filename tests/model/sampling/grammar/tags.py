"""Random structural tags, and the judge of texts that are written for them: Python's JSON parser and `jsonschema`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from tests.model.sampling.grammar.schemas import LEAVES, NAMES, SCHEMAS, Validator

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
TRIGGERS = ("]", "}", "[(")
"""Triggers that do not overlap. Random texts contain the first two often."""

CONTENTS: st.SearchStrategy[Any] = st.one_of(
    LEAVES,
    st.fixed_dictionaries({"type": st.just("array"), "items": LEAVES}),
    st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(NAMES, LEAVES, max_size=2)}),
    SCHEMAS,
)
"""Schemas, mostly supported ones: an unsupported one has the whole tag refused."""


def formats(texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Return formats made of schemas and texts. No text may continue a number."""
    schemas = st.builds(lambda schema: {"type": "json_schema", "json_schema": schema}, CONTENTS)
    leaves = schemas | st.builds(lambda text: {"type": "const_string", "value": text}, texts)
    return st.recursive(leaves, lambda inner: _holding(inner, texts), max_leaves=4)


def _holding(inner: st.SearchStrategy[Any], texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    kinds, elements = st.sampled_from(["sequence", "or"]), st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries({"type": kinds, "elements": elements}) | tags(texts, texts, inner)


def tags(
    begins: st.SearchStrategy[str], ends: st.SearchStrategy[str], contents: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Return tags with these contents, or with any text."""
    content = contents | st.just({"type": "any_text"})
    return st.fixed_dictionaries({"type": st.just("tag"), "begin": begins, "content": content, "end": ends})


def structural_tags(texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Return structural tags of each form."""
    begins = st.builds(str.__add__, st.sampled_from(TRIGGERS), texts | st.just(""))
    structure = st.fixed_dictionaries({"begin": begins, "schema": CONTENTS, "end": texts})
    structures = st.fixed_dictionaries(
        {"structures": st.lists(structure, min_size=1, max_size=3), "triggers": st.just(list(TRIGGERS))}
    )
    triggered = st.fixed_dictionaries(
        {
            "type": st.just("triggered_tags"),
            "triggers": st.just(list(TRIGGERS)),
            "tags": st.lists(tags(begins, texts, formats(texts)), min_size=1, max_size=3),
        },
        optional={"at_least_one": st.booleans(), "stop_after_first": st.booleans()},
    )
    whole = st.builds(lambda form: {"type": "structural_tag", "format": form}, formats(texts) | triggered)
    return whole | structures


def admits(tag: Mapping[str, Any], text: str) -> bool:
    """Return whether a text keeps to a structural tag."""
    if "structures" in tag:
        contents = [{"type": "json_schema", "json_schema": each["schema"]} for each in tag["structures"]]
        told = [{**each, "content": content} for each, content in zip(tag["structures"], contents, strict=True)]
        return _is_triggered({"tags": told}, text)
    form = tag["format"]
    return _is_triggered(form, text) if form["type"] == "triggered_tags" else "" in _rests(form, text)


def _is_triggered(form: Mapping[str, Any], text: str, num_tags: int = 0) -> bool:
    if num_tags and form.get("stop_after_first"):
        return not text
    used = [trigger for trigger in TRIGGERS if any(each["begin"].startswith(trigger) for each in form["tags"])]
    begins = [place for trigger in used if (place := text.find(trigger)) >= 0]
    if not begins:
        return num_tags > 0 or not form.get("at_least_one")
    rests = [rest for each in form["tags"] for rest in _rests({**each, "type": "tag"}, text[min(begins) :])]
    return any(_is_triggered(form, rest, num_tags + 1) for rest in rests)


def _ends(text: str) -> list[int]:
    """Return the lengths of the JSON values that a text begins with: the beginnings of a number are numbers, too."""
    try:
        _, longest = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:
        return []
    return [end for end in range(1, longest + 1) if _NUMBER.fullmatch(text, 0, end) or end == longest]


def _rests(form: Mapping[str, Any], text: str) -> list[str]:
    """Return the rests of a text after each beginning that keeps to a format."""
    match form["type"]:
        case "json_schema":
            return [
                text[end:] for end in _ends(text) if Validator(form["json_schema"]).is_valid(json.loads(text[:end]))
            ]
        case "const_string":
            return [text.removeprefix(form["value"])] if text.startswith(form["value"]) else []
        case "or":
            return [rest for each in form["elements"] for rest in _rests(each, text)]
        case "sequence":
            rests = [text]
            for each in form["elements"]:
                rests = [after for rest in rests for after in _rests(each, rest)]
            return rests
    begin, end = ({"type": "const_string", "value": form[name]} for name in ("begin", "end"))
    if form["content"]["type"] == "any_text":
        found = [rest.partition(form["end"]) for rest in _rests(begin, text)]
        return [after for _, mark, after in found if mark]
    return _rests({"type": "sequence", "elements": [begin, form["content"], end]}, text)
