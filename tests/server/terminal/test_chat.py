"""`lightwell chat`: a conversation on a pseudo-terminal, and the parts of it that need none."""

from pathlib import Path

import httpx
import pytest

from lightwell.server.terminal.chat import end_of_blocks
from tests.server.running import is_running, wait_for
from tests.server.terminal.terminal_program import CTRL_C, CTRL_D, on_terminal
from tests.support.processes import Server, descendants
from tests.support.shared import shared_server


@pytest.fixture(scope="module")
def server() -> Server:
    return shared_server("--served-model-name", "fables")


def test_a_conversation_keeps_its_turns_and_explains_its_last_token(server: Server, tmp_path: Path) -> None:
    options = ("--temperature", "0", "--max-tokens", "6")
    with on_terminal("chat", "--url", server.url, *options, XDG_STATE_HOME=str(tmp_path)) as chat:
        chat.expect("Ctrl-D ends.\r\n>")
        messages = []
        for question in ("Who was there?", "And then?"):
            messages.append({"role": "user", "content": question})
            body = {"model": "fables", "messages": messages, "temperature": 0, "max_tokens": 6}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
            text = answer["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": text})
            start = len(chat.shown)
            chat.write(f"{question}\r")
            end = chat.expect(text.split()[-1], after=start)
            chat.expect(">", after=end)
        start = len(chat.shown)
        chat.write("/why\r")
        chat.expect(" rather than ", after=start)
        chat.expect("(embedding)", after=start)
        chat.write("/wyh\r")
        chat.expect("/wyh is not a command; did you mean '/why'?", after=start)
        chat.write("/temperature 200\r")
        chat.expect("temperature '200' is not a number from 0 to 100", after=start)
        chat.write("/temperature 0.5\r")
        chat.expect("temperature: 0.5", after=start)
        chat.write("/system Be brief.\r")
        chat.expect("system: Be brief.", after=start)
        chat.write("/why\r")
        chat.expect(">", after=chat.expect("there is no answer yet", after=start))  # Ctrl-D without a prompt is lost
        chat.write(CTRL_D)
        assert chat.wait() == 0
    history = tmp_path / "lightwell" / "chat_history"
    assert "+And then?" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_chat_with_a_server_of_its_own_ends_it(tmp_path: Path) -> None:
    with on_terminal("chat", "fables", "--kv-cache-memory", "16MiB", XDG_STATE_HOME=str(tmp_path)) as chat:
        end = chat.expect("Ctrl-D ends.\r\n>")
        started = [pid for pid in descendants(chat.pid) if pid != chat.pid]
        chat.write("Tell a long tale.\r")
        chat.expect("\n", after=end + len("Tell a long tale."))
        chat.write(CTRL_C)
        chat.expect(">", after=end)
        chat.write("/exit\r")
        assert chat.wait() == 0
        assert len(started) >= 2
        wait_for(lambda: not any(map(is_running, started)), "the server ends")


def test_a_closed_terminal_ends_the_server_of_a_chat(tmp_path: Path) -> None:
    with on_terminal("chat", "fables", "--kv-cache-memory", "16MiB", XDG_STATE_HOME=str(tmp_path)) as chat:
        chat.expect("Ctrl-D ends.\r\n>")
        started = [pid for pid in descendants(chat.pid) if pid != chat.pid]
        chat.close()
        wait_for(lambda: not any(map(is_running, started)), "the server ends")


def test_blocks_of_markdown_end_at_empty_lines_outside_code() -> None:
    code = "```\na = 1\n\nb = 2\n```\n\n"
    assert end_of_blocks("one\ntwo") == 0
    assert end_of_blocks("one\n\ntwo") == 5
    assert end_of_blocks(code[:12]) == 0
    assert end_of_blocks(code + "rest") == len(code)
