"""Small chat templates of our own. Each writes tools and calls as a family of models does."""

HERMES = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}
    {%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
    {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson }}
    {{- '}\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Hermes, Qwen 2.5, Qwen 3."""

QWEN_3 = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""Qwen 3's thinking: the template opens a thought itself, unless thinking is disabled."""

OPEN_THOUGHT = """{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}
{%- if add_generation_prompt %}<A><think>
{% endif %}"""
"""DeepSeek R1, QwQ: the prompt opens the thought."""

MISTRAL = """<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}[INST] {{ m.content }}[/INST]
    {%- elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]
    {%- elif m.tool_calls %}[TOOL_CALLS] [
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
            {%- set written = call.function | tojson %}
            {{- written[:-1] ~ ', "id": "' ~ call.id ~ '"}' ~ (']</s>' if loop.last else ', ') }}
        {%- endfor %}
    {%- else %} {{ m.content }}</s>{% endif %}
{%- endfor %}"""
"""Mistral 7B v0.3, Nemo."""

MISTRAL_ARGS = """<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
    {%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
    {%- else %}{{ m.content }}
        {%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]
            {{- call.function.arguments | tojson }}
        {%- endfor %}</s>
    {%- endif %}
{%- endfor %}"""
"""Mistral Small 3.1 and on."""

LLAMA = """{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if loop.first and tools %}{{ tools | tojson }}
{% endif %}
{%- if m.tool_calls %}
    {%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ '}' }}
{%- else %}{{ m.content }}{% endif %}<|eot_id|>
{%- endfor %}"""
"""Llama 3.1 to 3.3."""

ARGUMENTS_AS_TEXT = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- for call in m.tool_calls or [] %}
    {{- '<|calls|>' if loop.first else '\\n' }}<|call|>function<|sep|>{{ call.function.name }}
    {{- '\\n```json\\n' + call.function.arguments + '\\n```<|call_end|>' }}
    {{- '<|calls_end|>' if loop.last }}
{%- endfor %}<|eos|>
{%- endfor %}"""
"""DeepSeek V3: special tokens all around, and arguments that must be text."""

XML = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
    {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
    {%- for name, value in call.function.arguments | items %}
        {{- '<parameter=' + name + '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' }}
    {%- endfor %}
    {{- '</function>\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}"""
"""Qwen 3 Coder, Qwen 3.5, Seed."""

KEYS_AND_VALUES = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
{{ m.content }}
{%- for call in m.tool_calls or [] %}
    {{- '\\n<tool_call>' + call.function.name + '\\n' }}
    {%- for name, value in call.function.arguments | items %}
        {{- '<arg_key>' ~ name ~ '</arg_key>\\n<arg_value>' ~ (value if value is string else value | tojson) }}
        {{- '</arg_value>\\n' }}
    {%- endfor %}
    {{- '</tool_call>' }}
{%- endfor %}
{%- endfor %}"""
"""GLM 4.5."""

_BARE = """{% macro written(value) %}
    {%- if value is string %}{{ 'QUOTE' ~ value ~ 'QUOTE' }}
    {%- elif value is mapping %}{% raw %}{{% endraw %}
        {%- for name, inner in value | dictsort %}
            {{- ',' if not loop.first }}{{ name }}:{{ written(inner) }}
        {%- endfor -%}
        {% raw %}}{% endraw %}
    {%- elif value is sequence %}[
        {%- for inner in value %}{{ ',' if not loop.first }}{{ written(inner) }}{% endfor %}]
    {%- else %}{{ value | tojson }}{% endif %}
{%- endmacro %}
{%- if tools %}OPEN{{ tools | tojson }}CLOSE{% endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}RESULT{{ m.name }}{{ written({'value': m.content}) }}END
    {%- else %}OPEN{{ m.role }}
{{ m.content }}
        {%- for call in m.tool_calls or [] %}
            {%- set arguments = call.function.arguments %}
            {{- 'CALLcall:' ~ call.function.name }}
            {{- written(arguments) if arguments is mapping else '{' ~ arguments ~ '}' }}DONE
        {%- endfor %}
        {%- set next_role = (messages[loop.index] or {}).role %}
        {{- ('' if next_role == 'tool' else 'RESULT') if m.tool_calls else 'CLOSE\\n' }}
    {%- endif %}
{%- endfor %}{% if add_generation_prompt and messages[-1].role != 'tool' %}OPENmodel
{% endif %}"""


def _bare(**texts: str) -> str:
    source = _BARE
    for name, text in texts.items():
        source = source.replace(name, text)
    return source


GEMMA_4 = _bare(
    QUOTE='<|"|>', CALL="<|tool_call>", DONE="<tool_call|>", RESULT="<|tool_response>", END="<tool_response|>",
    OPEN="<|turn>", CLOSE="<turn|>",
)  # fmt: skip
"""Gemma 4: bare names, texts between tokens, and a token after the calls that announces results."""

FUNCTION_GEMMA = _bare(
    QUOTE="<escape>", CALL="<start_function_call>", DONE="<end_function_call>", RESULT="<start_function_response>",
    END="<end_function_response>", OPEN="<start_of_turn>", CLOSE="<end_of_turn>",
)  # fmt: skip

PLAIN = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<|A|>{% endif %}"""
"""Templates without tools."""

NO_SYSTEM = """{% for m in messages %}
    {%- if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('they must alternate') }}{% endif %}
    {{- '<' ~ m.role ~ '>' ~ m.content }}
{%- endfor %}{% if add_generation_prompt %}<A>{% endif %}"""
"""Gemma 1 to 3 and others: no system message, no tools, strict alternation."""

GPT_OSS = """{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start|>assistant to=functions.' ~ call.name ~ '<|channel|>commentary json<|message|>' }}
        {{- call.arguments | tojson }}<|call|>
    {%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
    {%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""gpt-oss: channels."""

SOLAR = """{% if tools %}<|begin|>system<|content|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
    {%- if m.thinking %}<|begin|>assistant<|think|>{{ m.thinking }}<|end|>{% endif %}
    {%- if m.tool_calls %}<|begin|>assistant<|tool_calls|>
        {%- for call in m.tool_calls %}
            {{- '<|tool_call:begin|>' ~ call.id ~ '<|tool_call:name|>' ~ call.function.name ~ '<|tool_call:args|>' }}
            {{- call.function.arguments | tojson }}<|tool_call:end|>
        {%- endfor %}<|calls|>
    {%- else %}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|begin|>assistant{% endif %}"""
"""Solar Open: calls with an id, after a tag that begins like the tag before text."""

COUNTED = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
    {%- if m.tool_calls %}<|START_ACTION|>[
        {%- for call in m.tool_calls %}
            {{- '{"tool_call_id": "' ~ loop.index0 ~ '", "tool_name": "' ~ call.function.name }}
            {{- '", "parameters": ' ~ call.function.arguments | tojson ~ '}' ~ (', ' if not loop.last) }}
        {%- endfor %}]<|END_ACTION|>
    {%- else %}<|START_TEXT|>{{ m.content }}<|END_TEXT|>{% endif %}<|END|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Command R7B: calls that are counted."""

IDS_ONLY = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
    {%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}
{% endif %}{{ m.content }}
    {%- if m.tool_calls %}<|calls|>
        {%- for call in m.tool_calls %}<|call|>{{ call.id }}<|args|>{{ call.function.arguments | tojson }}<|call_end|>
        {%- endfor %}<|calls_end|>
    {%- endif %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Kimi K2: the tool's name is written only in the call's id."""

QUEUED_IDS = (
    IDS_ONLY.replace("{% if tools", "{% set queue = namespace(ids=[], n=0) %}{% if tools", 1)
    .replace(
        "<|call|>{{ call.id }}",
        """{% set id = 'functions.' ~ call.function.name ~ ':' ~ queue.n %}{% set queue.n = queue.n + 1 %}
    {%- set _ = queue.ids.append(id) %}<|call|>{{ id }}""",
    )
    .replace("{{ m.tool_call_id }}", "{{ queue.ids.pop(0) }}")
)
"""Kimi K2 Thinking: the template makes the ids, and keeps them in a queue for the results."""

TYPED = """{% macro open(tag) %}<|open|>{{ tag }}<|sep|>{% endmacro %}
{%- macro close(tag) %}<|close|>{{ tag }}<|sep|>{% endmacro %}
{%- if tools %}{{ open('message role="system"') }}{{ tools | tojson }}{{ close('message') }}<|end_of_msg|>{% endif %}
{%- for m in messages %}{{ open('message role="' ~ m.role ~ '"') }}
    {%- if m.role == 'assistant' %}
        {{- open('think') ~ m.reasoning_content ~ close('think') ~ open('response') ~ m.content ~ close('response') }}
        {%- if m.tool_calls %}{{ open('tools') }}
            {%- for call in m.tool_calls %}
                {{- open('call tool="' ~ call.function.name ~ '" index="' ~ loop.index ~ '"') }}
                {%- for name, value in call.function.arguments.items() %}
                    {%- set type = 'string' if value is string else 'number' if value is number else 'array' %}
                    {{- open('argument key="' ~ name ~ '" type="' ~ type ~ '"') }}
                    {{- value if value is string else value | tojson }}{{ close('argument') }}
                {%- endfor %}{{ close('call') }}
            {%- endfor %}{{ close('tools') }}
        {%- endif %}
    {%- else %}{{ m.content }}{% endif %}{{ close('message') }}<|end_of_msg|>
{%- endfor %}{% if add_generation_prompt %}{{ open('message role="assistant"') ~ open('think') }}{% endif %}"""
"""Kimi K3: tags that are made of tokens and words, around reasoning, the answer, calls and their typed arguments."""

PYTHON = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
    {%- for call in m.tool_calls or [] %}<function name="{{ call.function.name }}">
        {%- for name, value in call.function.arguments.items() %}<param name="{{ name }}">
            {{- '<![CDATA[' ~ value ~ ']]>' if value is string and '<' in value else value }}</param>
        {%- endfor %}</function>
    {%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""MiniCPM 5: values as Python writes them, and texts with quoted tags."""

SUFFIXED = HERMES.replace(
    "{{ m.content }}",
    "{{ '<think' ~ ':x>' ~ m.reasoning_content ~ '</think' ~ ':x>' if m.reasoning_content }}{{ m.content }}",
)
"""Hy3: tags of reasoning that the template's source does not have."""

NO_OPENING = """{% for m in messages %}<|{{ m.role }}|>
{{ m.reasoning_content ~ '\n[BEGIN]\n' if m.reasoning_content }}{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
My steps:
{% endif %}"""
"""Apriel: the prompt begins the reasoning by words, and a mark ends it."""

_IN_PYTHON = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
    {%- if m.tool_calls %}START[
        {%- for call in m.tool_calls %}{{ ', ' if not loop.first }}{{ call.function.name }}(
            {%- for name, value in call.function.arguments.items() %}
                {{- ', ' if not loop.first }}{{ name }}={{ VALUE }}
            {%- endfor %})
        {%- endfor %}]END
    {%- endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LFM2 = (
    _IN_PYTHON.replace("VALUE", "'\\'' ~ value ~ '\\'' if value is string else value")
    .replace("START", "<|tool_call_start|>")
    .replace("END", "<|tool_call_end|>")
)
"""LFM2.5: calls as Python writes them, with unescaped texts."""

LLAMA_PYTHON = _IN_PYTHON.replace("VALUE", "'\"' ~ value ~ '\"'").replace("START", "").replace("END", "")
"""vLLM's templates for calls of Llama 3.2 and 4 in Python, without a tag."""

LFM2_TOOLS = """{% if tools %}<|im_start|>system
List of tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""LFM2, Granite 3: tools, and no calls."""

FUNCTIONARY = """<|start|>system

Respond in this format:
>>>${recipient}
${content}
Available functions:
{{ tools | tojson if tools }}<|eot|>
{%- for m in messages %}<|start|>{{ m.role }}

{% if m.role == 'assistant' %}
    {%- if m.content %}{{ '>>>all\n' ~ m.content }}{% endif %}
    {%- for call in m.tool_calls or [] %}
        {{- '>>>' + call.function.name + '\n' + call.function.arguments }}
    {%- endfor %}
{%- else %}{{ m.content }}{% endif %}<|eot|>
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant

>>>{% endif %}"""
"""Functionary 3.2: each part of an answer has its recipient, and the prompt ends with the mark of the first part."""

FIREFUNCTION = """{% for m in messages %}
    {%- if loop.first %}<|start|>system

Functions as JSON:
{{ '' + functions + '\nToday is ' + datetime }}.<|eot|>{% endif %}<|start|>{{ m.role }}

{{ m.content }}
    {%- for call in m.tool_calls or [] %}{{ ' functools[' if loop.first }}
        {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + '}' }}
        {{- ', ' if not loop.last else ']' }}
    {%- endfor %}<|eot|>
{%- endfor %}<|start|>assistant

"""
"""Firefunction 2: a word before the list of calls, and tools that are a text by another name."""
