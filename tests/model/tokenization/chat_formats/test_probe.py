"""How a template writes tools is found out by rendering it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import transformers.models.llama4.processing_llama4 as llama4

from lightwell.model.tokenization.chat_formats.call_syntax import GENERIC, ID, BareSyntax, CallSyntax, PairSyntax
from lightwell.model.tokenization.chat_formats.probe import PYTHON_CALLS, UNWRITTEN, ToolUse, find_tool_use
from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.template_client import ChatTemplateError
from lightwell.model.tokenization.template_process import template_environment
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats import templates
from tests.model.tokenization.chat_formats.test_parser import ARGS, BARE, GPT_OSS, LIST, LLAMA, MISTRAL, XML


def use_of(source: str, *special: str) -> ToolUse:
    template = template_environment().from_string(source)

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        try:
            return template.render(messages=messages, tools=tools, bos_token="<s>", add_generation_prompt=False)
        except Exception as error:
            raise ChatTemplateError(str(error)) from error

    return find_tool_use(render, special)


SYNTAXES: dict[str, tuple[str, CallSyntax]] = {
    "hermes": (templates.HERMES, GENERIC),
    "mistral": (templates.MISTRAL, replace(MISTRAL, optional_id=f', "id": "{ID}"', has_ids=True)),
    "mistral args": (templates.MISTRAL_ARGS, replace(ARGS, has_ids=True)),
    "llama": (templates.LLAMA, LLAMA),
    "text": (
        templates.ARGUMENTS_AS_TEXT,
        CallSyntax(
            opening="<|calls|><|call|>function<|sep|>",
            between="\n```json\n",
            next_call="\n```<|call_end|>\n<|call|>function<|sep|>",
            closing="\n```<|call_end|><|calls_end|>",
        ),
    ),
    "gpt-oss": (templates.GPT_OSS, GPT_OSS),
    "xml": (templates.XML, XML),
    "keys": (
        templates.KEYS_AND_VALUES,
        CallSyntax(
            opening="<tool_call>",
            between="",
            next_call="\n</tool_call>\n<tool_call>",
            closing="\n</tool_call>",
            pairs=PairSyntax("\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
        ),
    ),
    "gemma 4": (templates.GEMMA_4, BARE),
    "functiongemma": (
        templates.FUNCTION_GEMMA,
        CallSyntax(
            opening="<start_function_call>call:",
            between="",
            next_call="<end_function_call><start_function_call>call:",
            closing="<end_function_call>",
            bare=BareSyntax("<escape>", is_sorted=True),
        ),
    ),
    "solar": (
        templates.SOLAR,
        CallSyntax(
            opening=f"<|tool_calls|><|tool_call:begin|>{ID}<|tool_call:name|>",
            between="<|tool_call:args|>",
            next_call=f"<|tool_call:end|><|tool_call:begin|>{ID}<|tool_call:name|>",
            closing="<|tool_call:end|>",
            has_ids=True,
        ),
    ),
    "counted": (
        templates.COUNTED,
        CallSyntax(
            opening=f'<|START_ACTION|>[{{"tool_call_id": "{ID}", "tool_name": "',
            between='", "parameters": ',
            next_call=f'}}, {{"tool_call_id": "{ID}", "tool_name": "',
            closing="}]<|END_ACTION|>",
        ),
    ),
    "lfm2": (templates.LFM2, PYTHON_CALLS),
    "llama python": (templates.LLAMA_PYTHON, LIST),
}


@pytest.mark.parametrize(("source", "syntax"), SYNTAXES.values(), ids=SYNTAXES)
def test_the_texts_around_a_call_are_those_of_the_template(source: str, syntax: CallSyntax) -> None:
    use = use_of(source)
    assert use.by_template
    assert replace(use.syntax, others=()) == replace(syntax, others=())
    assert use.arguments_as_text == (source == templates.ARGUMENTS_AS_TEXT)


def test_an_id_that_mistrals_models_may_write_is_part_of_another_form() -> None:
    (other,) = use_of(templates.MISTRAL_ARGS).syntax.others
    assert other.between == f"[CALL_ID]{ID}[ARGS]"


def test_values_that_are_no_text_may_have_a_tag_of_their_own() -> None:
    source = templates.XML.replace(
        "'>\\n' ~ (value", """'" string="' ~ ('true' if value is string else 'false') ~ '">' ~ (value"""
    )
    pairs = use_of(source).syntax.pairs
    assert pairs is not None
    assert pairs.name_ends == ('" string="true">', '" string="false">')


def test_a_token_that_llama_may_write_before_a_call_belongs_to_it() -> None:
    (other,) = use_of(templates.LLAMA, "<|python_tag|>").syntax.others
    assert other.opening == '<|python_tag|>{"name": "'


@pytest.mark.parametrize("syntax", UNWRITTEN, ids=["lfm2", "granite"])
def test_calls_that_a_template_leaves_out_are_known_by_the_models_token(syntax: CallSyntax) -> None:
    use = use_of(templates.LFM2_TOOLS, syntax.trigger)
    assert (use.by_template, use.writes_calls, use.syntax) == (True, False, syntax)
    assert not use_of(templates.LFM2_TOOLS).by_template
    assert use_of(templates.HERMES, syntax.trigger).syntax == GENERIC


def test_the_template_of_llama_4_is_read() -> None:
    use = use_of(llama4.chat_template)
    assert use.by_template
    assert (use.syntax.between, use.syntax.closing) == ('", "parameters": ', "}")


@pytest.mark.parametrize("source", [templates.PLAIN, templates.NO_SYSTEM, "{{ raise_exception('never') }}"])
def test_a_template_without_tools_gets_the_generic_form(source: str) -> None:
    use = use_of(source)
    assert not use.by_template
    assert use.syntax == GENERIC
    assert use.takes_system == (source == templates.PLAIN)


def test_tools_whose_calls_cannot_be_read_are_written_out_too() -> None:
    unreadable = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert not use_of(unreadable).by_template


async def test_the_packaged_model_has_no_tools_in_its_template(packaged: Tokenizer) -> None:
    template = ChatTemplate(packaged.chat_template or "", packaged)
    assert not template.tool_use.by_template
    tool = {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": {}}}
    rows, tools = await template.with_tools([{"role": "user", "content": "Hi"}], [tool])
    assert not tools
    assert "get_weather" in template.render(rows)
