"""`LLM`: it gives the same answers as a server, and behaves as a library in the caller's process."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lightwell.server.library.llm import LLM, AsyncLLM, SamplingParams
from lightwell_client import ApiError, BadRequest, Client, LightwellError, Unavailable
from tests.server.library.calls import ASKED, CALLS, GREEDY, TEXT, outcome, same
from tests.support.shared import shared_server


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("fables", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(shared_server("fables", "--threads", "1").url) as made:
        yield made


def test_every_method_of_the_client_is_compared() -> None:
    for kind, names in ((Client, {*CALLS, *ASKED}), (LLM, {*CALLS, *ASKED, "get_default_sampling_params"})):
        methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
        assert methods - {"close"} == names


@pytest.mark.parametrize("method", [*CALLS, *ASKED])
def test_a_method_has_the_bits_of_the_server(llm: LLM, client: Client, method: str) -> None:
    assert same(outcome(llm, method), outcome(client, method))


def test_texts_are_those_of_the_server_one_by_one_and_together(llm: LLM, client: Client) -> None:
    prompts = [f"{word} fox" for word in ("A", "The", "One", "No", "My", "This", "Every", "Some", "Old", "Sly", "Red")]
    expected = [client.generate(prompt, **GREEDY).text for prompt in prompts]
    together = llm.generate(prompts, SamplingParams(**GREEDY), use_tqdm=False)
    assert [each.text for each in together] == expected
    assert [each.prompt for each in together] == prompts
    sampled = {"seed": 7, "temperature": 1.0, "max_tokens": 6, "logprobs": 2}
    (ours,) = llm.generate("A fox", **sampled)
    theirs = client.generate("A fox", return_token_ids=True, **sampled)
    assert (ours.text, ours.outputs[0].token_ids) == (theirs.text, theirs.choices[0].token_ids)
    assert same(ours.choices[0].logprobs, theirs.choices[0].logprobs)
    assert ours.prompt_token_ids == client.tokenize("A fox").ids
    assert "".join(chunk.text for chunk in llm.stream("A fox", **sampled)) == ours.text


def test_conversations_are_answered_as_by_the_server(llm: LLM, client: Client) -> None:
    messages = [{"role": "user", "content": "Tell a tale."}]
    expected = client.chat(messages, **GREEDY)
    (one,) = llm.chat(messages, **GREEDY)
    assert (one.text, one.outputs[0].text) == (expected.text, expected.text)
    assert one.prompt_token_ids == client.tokenize(messages).ids
    assert one.prompt is not None
    assert "Tell a tale." in one.prompt
    two = llm.chat([messages, messages], [SamplingParams(**GREEDY), SamplingParams(**GREEDY)])
    assert [each.text for each in two] == [expected.text] * 2
    assert "".join(chunk.text for chunk in llm.chat_stream(messages, **GREEDY)) == expected.text
    by_span = {"explain": {"by": "span", "verify": 1}, **GREEDY}
    theirs = client.chat(messages, **by_span).choices[0].reasons
    assert theirs
    assert same(llm.chat(messages, **by_span)[0].choices[0].reasons, theirs)
    chunks = [choice for chunk in llm.chat_stream(messages, **by_span) for choice in chunk.choices]
    assert same([reasons for choice in chunks for reasons in choice.reasons or ()], list(theirs))
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    options = {"temperature": 0, "max_tokens": 20}
    assert llm.parse(messages, schema, **options).value == client.parse(messages, schema, **options).value


def test_prompts_have_the_forms_of_vllm(llm: LLM) -> None:
    ids = llm.tokenize("A fox").ids
    forms: list[Any] = ["A fox", ids, {"prompt": "A fox"}, {"prompt_token_ids": ids}]
    expected = llm.generate("A fox", **GREEDY)[0].text
    assert [llm.generate(form, **GREEDY)[0].text for form in forms] == [expected] * 4
    assert [each.text for each in llm.generate(forms, **GREEDY)] == [expected] * 4
    assert llm.generate([]) == []
    with pytest.raises(TypeError, match=r"prompts: .*'text'"):
        llm.generate({"text": "A fox"})
    (vector,) = llm.embed("A fox")
    assert vector.outputs.embedding == [*vector.vector]
    assert llm.get_default_sampling_params().temperature == 1.0


def test_asyncio_has_the_same_methods(client: Client) -> None:
    async def ask() -> tuple[Any, Any, str]:
        async with AsyncLLM("fables", threads=1) as llm:
            generated, pattern = await asyncio.gather(llm.generate(["A fox"], **GREEDY), llm.attention(TEXT, layers=0))
            streamed = "".join([chunk.text async for chunk in llm.stream("A fox", **GREEDY)])
            return generated[0].text, pattern, streamed

    text, pattern, streamed = asyncio.run(ask())
    assert text == streamed == client.generate("A fox", **GREEDY).text
    assert same(pattern, client.attention(TEXT, layers=0))


def test_wrong_values_are_named_and_the_next_call_works(llm: LLM) -> None:
    for make, message in (
        (lambda: LLM("fables", max_model_length=64), "no setting 'max_model_length'; did you mean 'max_model_len'"),
        (lambda: SamplingParams(max_token=3), "no 'max_token'; did you mean 'max_tokens'"),
    ):
        with pytest.raises(TypeError, match=message):
            make()
    for settings, message in (
        ({"max_model_len": -1}, "max-model-len.*-1"),
        ({"dtype": "float3"}, "dtype.*float3"),
        ({"devices": 2}, "devices: 1 is accepted"),
        ({"trust_remote_code": True}, "trust_remote_code: False is accepted"),
        ({"model": "no-such-folder/x/y"}, "no-such-folder"),
    ):
        with pytest.raises(ValueError, match=message):
            LLM(**{"model": "fables", **settings})
    with pytest.raises(ValueError, match="sampling_params: 1 for 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(BadRequest, match="prompt") as refused:
        llm.generate(["A fox", "A wolf", ""], **GREEDY)
    assert "prompt 2 of 3" in refused.value.__notes__[0]
    with pytest.warns(UserWarning, match="enforce_eager has no effect"), LLM("fables", enforce_eager=True) as other:
        assert other.generate("A fox", **GREEDY)[0].text == llm.generate("A fox", **GREEDY)[0].text


def test_an_interrupt_ends_the_call_and_not_the_engine(llm: LLM) -> None:
    interrupt = threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))

    def read_forever() -> None:
        while True:
            for number, _ in enumerate(llm.stream("A fox", max_tokens=200, ignore_eos=True)):
                if number == 1 and interrupt.ident is None:  # a second one would end the test run
                    interrupt.start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background processes ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            read_forever()
    finally:
        signal.signal(signal.SIGINT, before)
    assert llm.generate("A fox", **GREEDY)[0].text


def test_after_close_calls_say_so_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    llm = LLM("fables", threads=1)
    llm.weights("W_Q", layer=0)
    stream = llm.stream("A fox", max_tokens=200, ignore_eos=True)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises((ApiError, RuntimeError)):
        list(stream)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("A fox")
    left = [each for each in threading.enumerate() if each not in before and each.name != "progress"]
    for thread in left:
        thread.join(300)
    assert not [each.name for each in left if each.is_alive()]


def test_a_close_ends_the_calls_of_other_threads() -> None:
    llm = LLM("fables", threads=1)
    long = {"max_tokens": 400, "ignore_eos": True}
    calls = [
        lambda: llm.generate(["A fox"] * 20, **long),
        lambda: llm.trace(TEXT, "logits"),
        lambda: llm.chat("Hi", **long),
    ]
    ends: list[BaseException] = []

    def run(call: Any) -> None:
        try:
            while True:
                call()
        except Exception as error:
            ends.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    next(llm.stream("A wolf", **long))
    llm.close()
    for thread in threads:
        thread.join(300)
    assert len(ends) == len(calls)


def test_an_engine_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("fables", threads=1)

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("lightwell.server.engine.engine.Engine.step", fail)
    with pytest.raises(LightwellError):
        llm.generate("A fox")
    with pytest.raises(Unavailable, match=r"the engine failed \(planted\); make another LLM"):
        llm.generate("A fox")
    llm.close()


def test_a_forked_process_is_told_to_spawn(llm: LLM) -> None:
    child = os.fork()
    if child == 0:
        try:
            llm.generate("A fox")
        except RuntimeError as error:
            os._exit(0 if "spawn" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


SPAWNED = """
import multiprocessing
from lightwell.server.library.llm import LLM

def child(queue):
    with LLM("fables", threads=1) as llm:
        queue.put(llm.generate("A fox", temperature=0, max_tokens=4)[0].text)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    with LLM("fables", threads=1) as llm:
        text = llm.generate("A fox", temperature=0, max_tokens=4)[0].text
    print(queue.get() == text)
    process.join()
"""


def test_a_script_and_its_spawned_process_each_have_one(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout.strip() == "True", done.stderr
