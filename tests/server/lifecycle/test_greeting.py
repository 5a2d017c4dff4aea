"""The greeting of `lightwell serve` on a terminal."""

import json
import re
import urllib.request

from tests.server.terminal.terminal_program import CTRL_C, on_terminal

ARGUMENTS = ("serve", "fables", "--port", "0", "--kv-cache-memory", "16MiB")


def test_a_terminal_shows_progress_a_summary_and_that_ctrl_c_drains() -> None:
    with on_terminal(*ARGUMENTS, NO_COLOR="1") as server:
        server.expect("loading fables")
        end = server.expect("curl ")
        server.expect("\n", after=end)
        rows = dict(
            re.findall(r"^  (model|parameters|precision|KV cache|page|API) +(.*?)\r?$", server.shown, re.MULTILINE)
        )
        assert rows["model"] == "fables (LlamaForCausalLM)"
        assert rows["parameters"] == "5,795,072"
        assert rows["precision"] == "bfloat16, on cpu"
        assert re.fullmatch(r"16 MiB, 2,720 tokens", rows["KV cache"])
        assert rows["API"] == f"{rows['page']}docs"
        assert urllib.request.urlopen(rows["page"]).status == 200
        (command,) = re.findall(r"curl http.*", server.shown)
        url, body = re.search(r"curl (\S+) .* -d '(.*)'", command).groups()  # type: ignore[union-attr]
        asked = urllib.request.Request(url, json.dumps(json.loads(body) | {"max_tokens": 1}).encode())
        asked.add_header("Content-Type", "application/json")
        assert json.load(urllib.request.urlopen(asked))["model"] == "fables"
        server.write(CTRL_C)
        server.expect("the server drains")
        assert server.wait() == 0
    assert "\x1b[3" not in server.raw, "NO_COLOR is set"


def test_a_terminal_has_colours_and_a_wrong_model_is_one_red_line() -> None:
    with on_terminal("serve", "fablez", HF_HUB_OFFLINE="1") as server:
        assert server.wait() == 1
    assert "\x1b[31merror:\x1b[0m model 'fablez'" in server.raw
    assert "did you mean 'fables'?" in server.shown
