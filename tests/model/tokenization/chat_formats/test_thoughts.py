"""Where reasoning begins is read from the template and from the prompt's end."""

import pytest

from lightwell.model.tokenization.chat_formats.thoughts import Start, ThoughtTags, find_tags, start_of
from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats import templates

THINK = ThoughtTags("<think>", "</think>")
MESSAGES = [{"role": "user", "content": "Why?"}]


@pytest.mark.parametrize(
    ("source", "arguments", "start"),
    [
        (templates.QWEN_3, {}, Start.MAYBE),
        (templates.QWEN_3, {"enable_thinking": False}, Start.ANSWER),
        (templates.OPEN_THOUGHT, {}, Start.THOUGHT),
        (templates.HERMES, {}, Start.ANSWER),
        (templates.GPT_OSS, {}, Start.MAYBE),
    ],
)
def test_the_prompts_end_tells_what_the_answer_begins_with(
    tokenizer: Tokenizer, source: str, arguments: dict[str, bool], start: Start
) -> None:
    template = ChatTemplate(source, tokenizer)
    assert start_of(template.thought_tags, template.render(MESSAGES, arguments=arguments)) is start


def test_tags_are_found_in_the_source_or_among_the_special_tokens() -> None:
    assert find_tags(templates.QWEN_3) == THINK
    assert find_tags("{{ m.content.split('</seed:think>') }}") == ThoughtTags("<seed:think>", "</seed:think>")
    assert find_tags("{{ m.reasoning_content }}", ["[THINK]", "[/THINK]"]) == ThoughtTags("[THINK]", "[/THINK]")
    assert find_tags(templates.PLAIN, ["<think>", "</think>"]) is None
