"""The process that renders chat templates inherits nothing from its parent, ends with it, and is replaced if lost."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.tokenization.chat_template import ChatTemplate, ChatTemplateError
from lightwell.model.tokenization.template_client import TemplateClient
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.server.running import wait_for

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ECHO = "{{ messages[0].content }}"
ON_DEMAND = "{% if messages[0].content == 'loop' %}" + ENDLESS + "{% endif %}" + ECHO
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(PACKAGED)


def chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_two_templates_share_a_process_and_neither_answers_for_the_other(tokenizer: Tokenizer) -> None:
    client = TemplateClient()
    templates = [ChatTemplate(f"{number} {ECHO}", tokenizer, client) for number in range(2)]
    chats = [f"{number}" * 10 for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        for number, template in enumerate(templates):
            texts = threads.map(lambda text, template=template: template.render(chat(text)), chats)
            assert list(texts) == [f"{number} {text}" for text in chats]


def test_an_event_loop_goes_on_while_a_template_loops_and_the_next_chat_gets_its_own_answer(
    tokenizer: Tokenizer,
) -> None:
    """The process is stopped until the event loop has run, so that it cannot end before."""
    client = TemplateClient(max_seconds=0.1)
    template = ChatTemplate(ON_DEMAND, tokenizer, client)
    stopped = client.pid
    assert stopped is not None

    async def main() -> None:
        os.kill(stopped, signal.SIGSTOP)
        looping = asyncio.create_task(template.render_async(chat("loop")))
        waiting = [asyncio.create_task(template.render_async(chat(f"{i}"))) for i in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (looping, *waiting))
        os.kill(stopped, signal.SIGCONT)
        with pytest.raises(ChatTemplateError, match=r"takes more than 0\.1 s"):
            await looping
        assert await asyncio.gather(*waiting) == ["0", "1", "2"]

    asyncio.run(main())


def test_a_chat_whose_client_leaves_does_not_change_the_next_one(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(ON_DEMAND, tokenizer, TemplateClient(max_seconds=0.1))

    async def main() -> None:
        for text in ("loop", "short", "long" * 9999):
            left = asyncio.create_task(template.render_async(chat(text)))
            await asyncio.sleep(0)
            left.cancel()
            assert await template.render_async(chat("next")) == "next"

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "\x00\n\r\u2028\x85", "a\n" * 100_000, "\u5929" * 100_000, "\ud800"])
def test_any_text_comes_back_as_it_is(tokenizer: Tokenizer, text: str) -> None:
    template = ChatTemplate(ECHO, tokenizer)
    assert template.render(chat(text)) == asyncio.run(template.render_async(chat(text))) == text


def test_a_process_that_was_killed_is_replaced(tokenizer: Tokenizer) -> None:
    client = TemplateClient()
    template = ChatTemplate(ECHO, tokenizer, client)
    for _ in range(2):
        lost = client.pid
        assert lost is not None
        os.kill(lost, signal.SIGKILL)
        os.waitid(os.P_PID, lost, os.WEXITED | os.WNOWAIT)
        assert template.render(chat("Hi")) == "Hi"
        assert client.pid != lost


def test_a_process_that_cannot_be_started_is_an_error_and_the_next_chat_works(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TemplateClient(max_seconds=0.1)
    template = ChatTemplate(ON_DEMAND, tokenizer, client)
    with pytest.raises(ChatTemplateError, match="takes more than"):
        template.render(chat("loop"))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(ChatTemplateError, match="no process can be started to render it"):
            template.render(chat("Hi"))
    assert template.render(chat("Hi")) == "Hi"


@needs_proc
def test_the_process_holds_no_file_but_its_socket_and_its_memory_is_bounded(tokenizer: Tokenizer) -> None:
    client = TemplateClient()
    ChatTemplate(ECHO, tokenizer, client)
    process = Path(f"/proc/{client.pid}")
    files = {number.name: os.readlink(number) for number in (process / "fd").iterdir()}
    assert sorted(files) == ["0", "1", "2"]
    assert files["0"] == files["1"]
    assert files["0"].startswith("socket:")
    assert files["2"] == os.devnull
    limits = (process / "limits").read_text()
    assert "Max open files            0 " in limits
    assert "Max data size             268435456 " in limits


PARENT = """
import sys
from lightwell.model.tokenization.template_client import TemplateClient
client = TemplateClient()
client.ask(b'"x"\\n', b'{}\\n')
print(client.pid, flush=True)
sys.stdin.read()
"""


@needs_proc
@pytest.mark.parametrize("killed", [True, False])
def test_the_process_ends_with_its_parent(killed: bool) -> None:
    command = [sys.executable, "-W", "error", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stderr is not None
        status = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert status.exists()
        if killed:
            parent.kill()
        parent.stdin.close()
        assert parent.stderr.read() == b""
    wait_for(lambda: not status.exists() or ") Z " in status.read_text(), "the process has ended")


def test_chats_that_wait_for_a_stopped_process_take_no_thread_from_others(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed and replaced after a timeout without an answer. Then each chat gets its own answer."""
    monkeypatch.setattr(
        "lightwell.model.tokenization.template_client._MAX_SILENCE", 4.0
    )  # a busy machine's is longer than 1
    client = TemplateClient()
    template = ChatTemplate(ECHO, tokenizer, client)
    stopped = client.pid
    assert stopped is not None

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        os.kill(stopped, signal.SIGSTOP)
        texts = [f"{i}" * 30_000 for i in range(4)]
        waiting = [asyncio.create_task(template.render_async(chat(text))) for text in ("first", *texts)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "others") == "others"
        assert not any(task.done() for task in waiting)
        with pytest.raises(ChatTemplateError, match="the process that renders it ended"):
            await waiting[0]
        assert await asyncio.gather(*waiting[1:]) == texts

    asyncio.run(main())
    assert client.pid != stopped
