"""Chat templates render as transformers renders them, and a bad one ends in one clear line instead of hanging."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.tokenization.chat_template import (
    MAX_SOURCE_CHARACTERS,
    ChatTemplate,
    ChatTemplateError,
    read_template_option,
)
from lightwell.model.tokenization.template_client import TemplateClient
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization import tokenizer_folders as folders

LLAMA_3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|stop|>\n\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|stop|>\n\n' }}
{%- endif %}
"""
CHATML = """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ message['role'] }}
{% generation %}
{% set body = message['content'] %}
{{ body }}<|im_end|>
{% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
JSON = """{% for message in messages %}{{ message | tojson }} {{ message | tojson(indent=2) }}
{% for key, value in message.items() | sort %}{{ loop.index }}/{{ loop.length }}{{ key }}={{ value }};{% endfor %}
{%- for letter in message.role %}{{ loop.cycle('a', 'b') }}{{ letter }}{{ loop.nextitem }}{% else %}none{% endfor %}
{{ dict(a=1, **{'b': 'x' * 3}) }}{{ undefined_name }}
{% endfor %}"""
STRICT = """{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}{% endif %}
[INST] {{ message['content'] }} [/INST]{% endfor %}"""

words = st.one_of(st.text(max_size=20), st.sampled_from(["<b>&'\"", "{{ 7 * 7 }}", "\u5929\u7a93\n", "  x  ", ""]))
role = st.sampled_from(["user", "assistant", "system", "tool", "stop"])
message = st.fixed_dictionaries({"role": role, "content": words}, optional={"name": st.one_of(st.none(), words)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return folders.write(
        tmp_path_factory.mktemp("chat") / "model",
        folders.llama3_like(),
        tokenizer_config=special | {"image_token": "<|end|>"},
    )


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def impatient() -> TemplateClient:
    return TemplateClient(max_seconds=0.1)


def rendered(tokenizer: Tokenizer, source: str, client: TemplateClient | None = None) -> str:
    return ChatTemplate(source, tokenizer, client).render([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("source", [LLAMA_3, CHATML, JSON], ids=["llama 3", "chatml", "json"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(message, min_size=1, max_size=4), prompt=st.booleans())
def test_a_template_renders_as_in_transformers(
    tokenizer: Tokenizer, theirs: Any, source: str, messages: list[dict[str, Any]], prompt: bool
) -> None:
    expected = theirs.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=prompt)
    assert ChatTemplate(source, tokenizer).render(messages, prompt) == expected


def test_the_packaged_model_renders_and_encodes_as_in_transformers() -> None:
    path = PACKAGED
    ours = Tokenizer.from_folder(path)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    messages = [{"role": "user", "content": "Tell me of a fox."}, {"role": "assistant", "content": "Once"}]
    assert ours.chat_template is not None
    template = ChatTemplate(ours.chat_template, ours)
    assert template.render(messages) == theirs.apply_chat_template(messages, tokenize=False)
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ours.encode(template.render(messages), add_special_tokens=False).ids == expected


def test_a_template_that_writes_the_first_token_gets_no_second_one(tokenizer: Tokenizer, theirs: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    ids = tokenizer.encode(ChatTemplate(LLAMA_3, tokenizer).render(messages), add_special_tokens=False).ids
    assert ids.count(tokenizer.bos_token_id or 0) == 1
    expected = theirs.apply_chat_template(messages, chat_template=LLAMA_3, add_generation_prompt=True)
    assert ids == expected["input_ids"]


def test_a_template_reads_every_named_special_token_and_the_date(tokenizer: Tokenizer) -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}{{ strftime_now('%Y') | length }}"
    assert rendered(tokenizer, source) == "<|begin|><|end|><|end|>4"


def test_a_template_refuses_messages_in_its_own_words(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(STRICT, tokenizer)
    with pytest.raises(ChatTemplateError, match="at least one message"):
        template.render([])
    with pytest.raises(ChatTemplateError, match="Roles must alternate user/assistant/user/assistant"):
        template.render([{"role": "assistant", "content": "Hi"}])
    assert "[INST] Hi [/INST]" in template.render([{"role": "user", "content": "Hi"}]), "the next conversation works"


def test_a_syntax_error_tells_its_line(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match=r"chat template, line 2: .*endif"):
        ChatTemplate("a\n{% endif %}", tokenizer)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['jinja2'] }}",
        "{{ namespace.__init__.__globals__['jinja2'] }}",
        "{{ dict.__call__.__globals__['jinja2'] }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ messages.clear() }}",
        "{{ messages[0].update(role='x') }}",
        "{% include 'file' %}",
        "{{ messages[0].content.nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_ends_in_an_error(tokenizer: Tokenizer, source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template") as caught:
        rendered(tokenizer, source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for a in range(9999) %}{%endfor%}{% endmacro %}{% for b in range(999) %}{{ f() }}{%endfor%}",
        "{% for a in range(999999999999) %}{% endfor %}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'abcdefgh' * 99 }}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
        "{% set x %}{% for i in range(9999) %}{{ 'abcdefgh' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
        "{% macro f() %}{% for i in range(9999) %}{{ 'abcdefgh' * 9999 }}{% endfor %}{% endmacro %}{{ f() | length }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x' | indent(999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ ([[1] * 99] * 99999) | sum(start=[]) }}",
        "{{ lipsum(n=99999999) }}",
    ],
)
def test_a_template_that_would_hang_or_fill_memory_ends_in_an_error(
    tokenizer: Tokenizer, impatient: TemplateClient, source: str
) -> None:
    with pytest.raises(ChatTemplateError):
        rendered(tokenizer, source, client=impatient)
    assert rendered(tokenizer, "{{ messages[0].content }}", client=impatient) == "Hi", "the next conversation works"


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% for i in [1, 1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}",
        "{% set x = 'a' * 4000000 %}{% for i in range(90000) %}{% set y = x | upper %}{% endfor %}",
    ],
)
def test_a_template_of_many_steps_is_interrupted(tokenizer: Tokenizer, impatient: TemplateClient, source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"takes more than 0\.1 s"):
        rendered(tokenizer, source, client=impatient)
    assert rendered(tokenizer, "{{ messages[0].content }}", client=impatient)


@pytest.mark.parametrize(
    "source", ["x" * (MAX_SOURCE_CHARACTERS + 1), "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "{{ 2 ** 999999999 }}"]
)
def test_a_hostile_source_ends_in_an_error(tokenizer: Tokenizer, impatient: TemplateClient, source: str) -> None:
    with pytest.raises(ChatTemplateError):
        rendered(tokenizer, source, client=impatient)


@pytest.mark.parametrize("end", ["{% if tools %}{% endif %}", "{{ functions }}"])
def test_the_longest_source_is_rendered(tokenizer: Tokenizer, end: str) -> None:
    """The source is searched once for the names of tools: one search from each character would take days."""
    words = "{% if true %}a {% endif %}" * 400
    source = words.ljust(MAX_SOURCE_CHARACTERS - len(end), "x") + end
    assert rendered(tokenizer, source) == "a " * 400 + "x" * (len(source) - len(words) - len(end))


def test_a_template_may_be_given_as_a_file_or_as_itself(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages }}")
    assert read_template_option(str(path)) == "{{ messages }}"
    assert read_template_option(CHATML) == CHATML
    with pytest.raises(ChatTemplateError, match=r"'nowhere.jinja' is not a jinja template and not a readable file"):
        read_template_option("nowhere.jinja")
    with pytest.raises(ChatTemplateError, match="not a readable file"):
        read_template_option("x" * 5000)
