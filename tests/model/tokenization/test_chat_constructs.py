"""The constructs in templates of well-known models render as in transformers: no limit of the sandbox may lose part of
a template's output.

Each template here is our own, and small; the comment next to it names the models with such constructs.
"""

from pathlib import Path
from typing import Any

import pytest
import transformers

from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization import tokenizer_folders as folders

CITY = {"type": "string", "description": "A \u201cname\u201d", "enum": ["Bern", "K\u00f6ln", "<b>"]}
DAYS = {"type": ["number", "null"], "default": 1.5}
SCHEMA = {"type": "object", "required": ["city", "days"], "properties": {"city": CITY, "days": DAYS}}
CALL = {"id": "abc123xyz", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern", "n": [1]}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "  Be brief.\n", "tools": [{"name": "weather", "parameters": SCHEMA}]},
    {"role": "user", "content": [{"type": "text", "text": " How is it? "}, {"type": "image"}]},
    {"role": "assistant", "content": "<think>\nHm & so\n</think>\n\nLet me see", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"celsius": 3}', "tool_call_id": "abc123xyz"},
    {"role": "tool", "content": "<tool_response>x</tool_response>"},
    {"role": "assistant", "content": "Cold.", "reasoning_content": "\nthree degrees\n"},
    {"role": "user", "content": "Thank you, \u5929\u7a93 \u00e9!\n"},
]

# Qwen 3, DeepSeek R1, SmolLM 3: where the last question is, thoughts cut out of earlier answers, tools' turns joined
THOUGHTS = """{%- set ns = namespace(searching=true, last=messages|length - 1, text='') %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
        and not (message.content.startswith('<tool') and message.content.endswith('>')) %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else message.content[0].text %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<think>' + thought.strip('\n') + '</think>' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}{{- '}' }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<responses>' }}{%- endif %}
        {{- content }}
        {%- if loop.last or (loop.nextitem.role != "tool") %}{{- '</responses>' }}{%- endif %}
    {%- else %}
        {{- loop.previtem.role if loop.previtem is defined else 'first' }}{{- content.strip() + '\n' }}
    {%- endif %}
{%- endfor %}
{{- ns.last }}{%- if enable_thinking is defined and enable_thinking is false %}{{- 'off' }}{%- endif %}"""

# Llama 3.x: tools in the first question, results as JSON; Mistral: alternation, ids of nine characters, growing lists
TOOLS = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{{- bos_token + "Today: " + date_string + "\\n" + system_message + "\\n" }}
{%- set users = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0, names=[], found=false) %}
{%- for m in loop_messages | rejectattr("role", "in", ["tool", "tool_results"]) if not (m.tool_calls is defined) %}
    {%- set ns.index = ns.index + 1 %}{%- set ns.names = ns.names + [m.role] %}
    {%- if m.role not in ["user", "assistant"] %}{{- raise_exception("Unknown role: " + m.role) }}{%- endif %}
{%- endfor %}
{{- ns.names | join(",") ~ ns.index % 2 ~ (users | length) ~ (users | last == loop_messages[-1]) }}
{%- for message in loop_messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call at once") }}{%- endif %}
        {%- set call = message.tool_calls[0] %}
        {%- if call.id is not defined or call.id | length != 9 %}{{- raise_exception("nine characters") }}{%- endif %}
        {%- for name, value in call.function.arguments | items %}
            {{- name + '="' + (value | string) + '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {%- set out = call.function | tojson %}{{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- elif message.content is not string %}
        {%- for part in message.content %}
            {%- if part.type == "text" %}{{- part['text'] | trim }}{%- else %}{{- "[" ~ part.type | upper ~ "]" }}
            {% endif %}
        {%- endfor %}
    {%- else %}{{- message.content }}{%- endif %}
{%- endfor %}
{%- for tool in messages[0].tools %}{{- tool | tojson(indent=4) }}{{- {"type": "function", "function": tool} | tojson }}
    {%- for key, val in tool.items() if key != "return" %}
        {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- key ~ val | tojson | safe }}
        {%- endif %}
    {%- endfor %}
{%- endfor %}"""

# Command-R, Phi, Gemma, Granite, gpt-oss and others: statements, macros that call themselves, own functions
STATEMENTS = """{%- for node in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}
{{ loop.depth }}{{ node.v }}{{ loop(node.c) }}{% endfor %}
{%- for a, b in [[1, 2], [3, 4]] %}{{ loop.index }}{{ loop.revindex }}{{ loop.index0 }}{{ loop.length }}
{{ loop.first }}{{ a * b }}
{{ loop.cycle('odd', 'even') }}{{ loop.changed(a > 0) }}{% endfor %}
{%- for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{%- for x in [] %}{% else %}empty{% endfor %}{%- for x in messages if x.role == 'user' %}
{{ loop.index }}/{{ loop.length }}{% endfor %}
{%- macro line(role, text='none') %}{{ role ~ text }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ line('a', 'b', 1, x=2) }}
{%- macro wrapped(n) %}[{{ caller(n) if caller is defined else n }}]{% endmacro %}
{{ wrapped(1) }}{% call(n) wrapped(3) %}{{ n + 1 }}{% endcall %}
{%- macro deep(n) %}{{ n }}{% if n %}{{ deep(n - 1) }}{% endif %}{% endmacro %}{{ deep(3) }}
{{ messages[-1].content | tojson(ensure_ascii=true) }}
{{ [1, {'b': 2, 'a': 1}] | tojson(separators=(',', ':'), sort_keys=true) }}
{%- filter upper %}loud {{ 1 }}{% endfilter %}{% with x = 3, y = x %}{{ x }}{% endwith %}
{%- set text %}a{% for c in 'bc' %}{{ c }}{% endfor %}{% endset %}{{ text | length }}
{% set t | upper | trim %} b {% endset %}{{ t }}
{%- set j = joiner(', ') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %}{% set c = cycler('a', 'b') %}
{{ c.next() }}{{ c.current }}
{%- set box = namespace(seen={}, n=0) %}{% for m in messages %}{% set box.n = box.n + (m.content | length) %}
{%- set box.seen = dict(box.seen, **{m.role: loop.index}) %}{% endfor %}{{ box.n }}{{ box.seen }}
{%- generation %}{{ messages[-1].content }}{% endgeneration %}{# a remark #}{% raw %}{{ as it is }}{% endraw %}
{%- if messages | length > 3 and messages[0].role == 'system' or false %}yes{% elif true %}no{% else %}never{% endif %}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return folders.write(
        tmp_path_factory.mktemp("constructs") / "model", folders.llama3_like(), tokenizer_config=special
    )


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("source", [THOUGHTS, TOOLS, STATEMENTS], ids=["thoughts", "tools", "statements"])
def test_what_templates_are_written_with_renders_as_in_transformers(folder: Path, source: str, prompt: bool) -> None:
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = theirs.apply_chat_template(MESSAGES, chat_template=source, tokenize=False, add_generation_prompt=prompt)
    assert ChatTemplate(source, Tokenizer.from_folder(folder)).render(MESSAGES, prompt) == expected
    assert len(expected) > 100
