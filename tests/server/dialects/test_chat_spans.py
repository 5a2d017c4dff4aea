"""`explain` by span: the sentences of a chat's messages that each sentence of the answer depends on."""

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.server.dialects.test_admin import bearer, write_keys
from tests.server.dialects.test_disconnect import Visitor, is_everything_freed
from tests.server.inline_engine import BatchedEngine, InlineEngine
from tests.server.serving import TEMPLATE, Site, build_site, error_of, site, write_tokenizer
from tests.tiny import make_variant, theirs

CHAT = "/v1/chat/completions"
DOCUMENT = "Oslo is cold. Rome is warm.\n- Paris is wet\n"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{DOCUMENT}\nWhere is it wet?"}]
SENTENCES = [
    (0, "Be brief."),
    (1, "Oslo is cold."),
    (1, "Rome is warm."),
    (1, "- Paris is wet"),
    (1, "Where is it wet?"),
]
THINKING = TEMPLATE.replace("<A>", "<A><think>{# </think> enable_thinking #}")
TWO_SENTENCES = {"regex": "[a-d]{5}\\. [A-D][a-d]{4}\\."}
BODY: dict[str, Any] = {
    "messages": MESSAGES,
    "temperature": 0,
    "max_tokens": 20,
    "structured_outputs": TWO_SENTENCES,
    "return_token_ids": True,
}


def build(
    folder: Path,
    name: str = "llama-gqa",
    engine: type[InlineEngine] = InlineEngine,
    special: Sequence[str] = ("<|end|>",),
    **more: Any,
) -> Site:
    """Return a site of a small random decoder with bytes and special tokens as its vocabulary."""
    made = make_variant(name, folder / "model", vocab_size=256 + len(special), max_position_embeddings=2048)
    write_tokenizer(made, special)
    own = engine(folder=made)
    own.engine_info = replace(own.engine_info, max_model_len=2048)
    return build_site(made, own, config=own.model_config, max_model_len=2048, **{"template": TEMPLATE, **more})


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return build(tmp_path_factory.mktemp("writer"))


def served(writer: Site, **more: Any) -> AbstractAsyncContextManager[Site]:
    """Return a site with the same engine, and other settings or another template."""
    engine = cast(InlineEngine, writer.engine)
    return site(engine.folder, engine, config=engine.model_config, max_model_len=2048, **more)


async def ask(at: Site, **body: Any) -> Any:
    answer = await at.post(CHAT, {**BODY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def explained(at: Site, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the only choice of an answer, and its reasons by span."""
    (choice,) = (await ask(at, explain={"by": "span", **options}))["choices"]
    return choice, choice["reasons"]


def rendered(messages: Sequence[dict[str, str]] = MESSAGES) -> bytes:
    return ("".join(f"<{each['role']}>{each['content']}" for each in messages) + "<A>").encode()


async def test_spans_are_the_sentences_of_the_messages(writer: Site) -> None:
    choice, reasons = await explained(writer)
    assert [each["text"] for each in reasons] == choice["message"]["content"].replace(". ", ".\0").split("\0")
    assert [each["tokens"] for each in reasons] == [[0, 7], [7, 13]]  # the space belongs to the sentence before it
    prompt = rendered()
    for each in reasons:
        assert choice["message"]["content"][each["start"] : each["end"]] == each["text"]
        parts = each["parts"]
        places = [(part["message"], part["start"], part["end"]) for part in parts]
        assert [(message, MESSAGES[message]["content"][a:b]) for message, a, b in places] == SENTENCES
        read = [prompt[slice(*part["tokens"])].decode() for part in parts]
        assert [text.strip() for text in read] == [text for _, text in SENTENCES]
        assert "".join(read[1:]) == MESSAGES[1]["content"]
        assert sum(abs(part["share"]) for part in parts) == pytest.approx(1)
        assert sum(part["estimate"] for part in parts) + each["rest"] == pytest.approx(each["value"])


async def test_an_empty_message_has_no_span(writer: Site) -> None:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": ""}, *MESSAGES[1:]]
    (choice,) = (await ask(writer, messages=messages, explain={"by": "span"}))["choices"]
    prompt, parts = rendered(messages).decode(), choice["reasons"][0]["parts"]
    assert [part["message"] for part in parts] == [0, 2, 2, 2, 2]
    assert prompt[slice(*parts[1]["tokens"])].strip() == "Oslo is cold."


async def test_a_line_without_letters_belongs_to_the_span_before_it(writer: Site) -> None:
    messages = [{"role": "user", "content": "notes.txt:\n```\nOslo is cold. Rome is warm.\n```\nWhere is it wet?"}]
    (choice,) = (await ask(writer, messages=messages, explain={"by": "span"}))["choices"]
    prompt = rendered(messages).decode()
    read = [prompt[slice(*part["tokens"])] for part in choice["reasons"][0]["parts"]]
    assert read == ["notes.txt:\n```\n", "Oslo is cold. ", "Rome is warm.\n```\n", "Where is it wet?"]


@pytest.mark.parametrize("versus", ["next", None, "q"])
async def test_estimates_are_the_sums_of_the_parts_of_words(writer: Site, versus: str | None) -> None:
    await check_estimates(writer, versus=versus)


@pytest.mark.parametrize("name", ["gemma3", "gpt_oss", "olmo2", "opt", "qwen3_5", "lfm2", "bart", "t5"])
async def test_estimates_and_effects_of_other_networks(tmp_path: Path, name: str) -> None:
    at = build(tmp_path, name)
    await check_estimates(at)
    _, reasons = await explained(at, verify=1)
    assert all(each["verify"][0]["effect"] for each in reasons)


async def check_estimates(at: Site, **options: Any) -> None:
    _, reasons = await explained(at, **options)
    words = (await ask(at, explain=options))["choices"][0]["reasons"]
    for each in reasons:
        own = words[slice(*each["tokens"])]
        assert each["value"] == pytest.approx(sum(one["value"] for one in own), abs=1e-4)
        for part in each["parts"]:
            values = [word["value"] for one in own for word in one["parts"][slice(*part["tokens"])]]
            assert part["estimate"] == pytest.approx(sum(values), abs=1e-6)


async def test_effects_are_those_of_an_attention_mask_in_transformers(writer: Site) -> None:
    choice, reasons = await explained(writer, verify=5)
    network = theirs(cast(InlineEngine, writer.engine).folder, torch.float32)
    prompt = list(rendered())
    ids = torch.tensor([prompt + choice["token_ids"][:-1]])
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()

    def logprob(first: int, end: int, tokens: Sequence[int]) -> float:
        """Return the log-probability of a sentence without the keys of these tokens."""
        seen = causal.clone()
        seen[:, slice(*tokens)] = False
        seen |= torch.eye(len(seen), dtype=torch.bool) & ~seen.any(1, keepdim=True)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            found = network(input_ids=ids, attention_mask=mask).logits[0].log_softmax(-1)
        rows = range(len(prompt) - 1 + first, len(prompt) - 1 + end)
        return float(sum(found[row, token] for row, token in zip(rows, choice["token_ids"][first:end], strict=True)))

    for each in reasons:
        assert sorted(row["span"] for row in each["verify"]) == [0, 1, 2, 3, 4]
        assert each["logprob"] == pytest.approx(logprob(*each["tokens"], (0, 0)), abs=1e-4)
        for row in each["verify"]:
            without = logprob(*each["tokens"], each["parts"][row["span"]]["tokens"])
            assert row["logprob"] == pytest.approx(without, abs=1e-4)
            assert row["effect"] == pytest.approx(without - each["logprob"], abs=1e-4)
        sizes = [abs(each["parts"][row["span"]]["estimate"]) for row in each["verify"]]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(abs(row["share"]) for row in each["verify"]) == pytest.approx(1)
        assert max(abs(row["effect"]) for row in each["verify"]) > 1e-3


async def test_effects_are_those_of_interventions_on_the_scores(writer: Site) -> None:
    choice, (reasons, _) = await explained(writer, verify=2)
    prompt = list(rendered())
    ids = prompt + choice["token_ids"][:-1]
    for row in reasons["verify"]:
        first, end = reasons["parts"][row["span"]]["tokens"]
        hidden = [[[-1e5 if first <= key < end else 0.0 for key in range(len(ids))]]]
        change = {"point": "attn.hook_attn_scores", "layer": "all", "op": "add", "value": hidden}
        logprob = 0.0
        for place in range(*reasons["tokens"]):
            asked = {"layers": -1, "positions": len(prompt) - 1 + place, "target": choice["token_ids"][place]}
            body = {"input": ids, "interventions": [change], "encoding_format": "float", **asked}
            found = await writer.post("/v1/lens", body)
            assert found.status_code == 200, found.text
            logprob += math.log(found.json()["data"][0]["arrays"]["target_probabilities"]["data"][0][0])
        assert row["logprob"] == pytest.approx(logprob, abs=1e-4)


async def test_the_first_span_may_begin_the_prompt(tmp_path: Path) -> None:
    at = build(tmp_path, template="{% for m in messages %}{{ m.content }}{% endfor %}")
    (choice,) = (await ask(at, explain={"by": "span", "verify": 8}))["choices"]
    assert choice["reasons"][0]["parts"][0]["tokens"] == [0, 9]
    assert all(row["logprob"] < 0 for each in choice["reasons"] for row in each["verify"])


async def test_embeddings_may_be_replaced(writer: Site) -> None:
    _, by_keys = await explained(writer, verify=2)
    _, by_embedding = await explained(writer, verify=2, take_out="embedding")
    for one, other in zip(by_keys, by_embedding, strict=True):
        assert one["parts"] == other["parts"]
        assert one["verify"][0]["effect"] != pytest.approx(other["verify"][0]["effect"], abs=1e-6)


async def test_a_stream_has_each_sentence_after_the_text(writer: Site) -> None:
    options = {"explain": {"by": "span", "verify": 2}, "n": 2, "temperature": 1, "seed": 3}
    whole = await ask(writer, **options)
    text = (await writer.post(CHAT, {**BODY, **options, "stream": True})).text
    *lines, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    is_reason = ["reasons" in choice for choice in choices]
    assert is_reason == sorted(is_reason)
    told = [(choice["index"], reasons) for choice in choices for reasons in choice.get("reasons", ())]
    assert told == [(choice["index"], reasons) for choice in whole["choices"] for reasons in choice["reasons"]]
    assert [index for index, _ in told] == [0, 0, 1, 1]


async def test_only_the_content_is_explained(tmp_path: Path) -> None:
    at = build(tmp_path, special=("<eos>", "<think>", "</think>"), template=THINKING)
    form = {"structured_outputs": {"regex": "[a-d]{5}\\."}, "thinking_budget": 5, "max_tokens": 60}
    (choice,) = (await ask(at, **form, explain={"by": "span"}))["choices"]
    content = choice["message"]["content"]
    (reasons,) = choice["reasons"]
    assert choice["message"]["reasoning"]
    assert (reasons["text"], len(content)) == (content, 6)
    assert bytes(choice["token_ids"][slice(*reasons["tokens"])]).decode() == content


async def test_parts_of_a_message_and_long_documents_have_at_most_64_spans(writer: Site) -> None:
    parts = [{"type": "text", "text": " A first part.\n"}, {"type": "text", "text": "Ab. " * 90}]
    template = "{% for m in messages %}<u>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    async with served(writer, template=template) as at:
        (choice,) = (await ask(at, messages=[{"role": "user", "content": parts}], explain={"by": "span"}))["choices"]
    spans = choice["reasons"][0]["parts"]
    text = "\n".join(part["text"] for part in parts)
    assert 40 <= len(spans) <= 64
    assert text[spans[0]["start"] : spans[0]["end"]] == "A first part."
    assert {text[span["start"] : span["end"]] for span in spans[1:-1]} == {"Ab. Ab."}
    assert all(span["end"] <= after["start"] for span, after in pairwise(spans))


@pytest.mark.parametrize(
    ("settings", "body", "names"),
    [
        ({"max_num_queued_tokens": 500}, {}, ["5 spans", "--max-num-queued-tokens", "at most 500"]),
        ({"max_capture_bytes": 20_000}, {}, ["--max-capture-bytes"]),
        ({}, {"messages": MESSAGES[:1] * 65}, ["65 messages", "at most 64"]),
        ({}, {"max_tokens": None, "n": 64}, ["(max_tokens)", "4194304"]),
    ],
)
async def test_reasons_that_cost_too_much_are_refused_before_the_answer(
    writer: Site, settings: dict[str, Any], body: dict[str, Any], names: list[str]
) -> None:
    num_submitted = len(writer.engine.submitted)
    async with served(writer, **settings) as at:
        error = await at.error(CHAT, {**BODY, "explain": {"by": "span", "verify": 8}, **body}, 413)
        assert all(name in error["message"] for name in names), error
        assert error["param"].startswith(("explain", "messages"))
        assert len(at.engine.submitted) == num_submitted
        assert (await at.post(CHAT, {**BODY, "max_tokens": 2})).status_code == 200


async def test_the_passes_are_counted_against_the_quota_of_the_key(writer: Site, tmp_path: Path) -> None:
    file = write_keys(tmp_path, rich="tokens_per_minute = 3500", poor="tokens_per_minute = 500")
    async with served(writer, api_key_file=file) as at:
        body = {**BODY, "explain": {"by": "span", "verify": 1}}
        error = error_of(await at.post(CHAT, body, headers=bearer("poor")))
        assert "at most 500 are accepted (tokens_per_minute of the API key)" in error["message"]
        num_submitted = len(at.engine.submitted)
        assert (await at.post(CHAT, body, headers=bearer("rich"))).status_code == 200
        read = [len(each.prompt_token_ids) for each in at.engine.submitted[num_submitted + 1 :]]
        assert 3 <= len([length for length in read if length]) <= 2 + 5
        assert sum(read) <= int(error["message"].partition(" tokens together")[0].rpartition(" ")[2])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"explain": {"by": "span", "verify": 9}}, "explain.verify"),
        ({"explain": {"by": "span", "versus": "no token"}}, "explain.versus"),
        ({"explain": {"by": "word"}, "stream": True}, "explain"),
        ({"explain": {"by": "span"}, "truncate_prompt_tokens": 20}, "explain.by"),
        (
            {"explain": {"by": "span"}, "interventions": [{"point": "hook_resid_pre", "layer": 0, "op": "zero"}]},
            "explain",
        ),
    ],
)
async def test_reasons_that_a_chat_cannot_have_are_refused(writer: Site, body: dict[str, Any], field: str) -> None:
    assert (await writer.error(CHAT, {**BODY, **body}, 400))["param"] == field


async def test_spans_belong_to_chats(writer: Site) -> None:
    error = await writer.error("/v1/next", {"input": "abc", "explain": {"by": "span"}}, 400)
    assert error["param"] == "explain.by"


async def test_a_template_that_changes_the_texts_is_refused(tmp_path: Path) -> None:
    at = build(tmp_path, template="{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    error = await at.error(CHAT, {**BODY, "explain": {"by": "span"}}, 400)
    assert (error["param"], "changes the texts" in error["message"]) == ("explain.by", True)


@pytest.mark.parametrize("streams", [False, True])
async def test_leaving_while_spans_are_measured_frees_the_engine(tmp_path: Path, streams: bool) -> None:
    at = build(tmp_path, engine=BatchedEngine)
    visitor = Visitor(at, CHAT, {**BODY, "explain": {"by": "span", "verify": 4}, "stream": streams})
    visit = asyncio.create_task(visitor.visit())
    while not any(each.interventions for each in at.engine.submitted):
        await asyncio.sleep(0)
    visitor.has_left.set()
    await visit
    assert is_everything_freed(at.engine)
    assert not at.engine.engine.has_work  # type: ignore[attr-defined]
