"""Answers in a terminal: one (`lightwell run`), or a conversation (`lightwell chat`)."""

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.server.terminal.command_errors import CommandError
from lightwell.server.terminal.connection import Connection

_HELP = {
    "/system": "[TEXT] sets the system prompt and starts the conversation again",
    "/temperature": "[NUMBER] sets the temperature; 0 is greedy",
    "/why": "shows why the last token of the answer was the likeliest",
    "/clear": "starts the conversation again",
    "/help": "shows these lines",
    "/exit": "ends, as Ctrl-D does; Ctrl-C ends an answer",
}
_BAR = 20
"""Characters of the longest bar of /why."""
_UNPRINTED = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])
"""Control characters, which could drive the terminal: answers lose them there."""


class Conversation:
    """The messages of a conversation with a server, and the settings of its answers."""

    def __init__(
        self, connection: Connection, model: str, system: str | None, temperature: float | None, max_tokens: int | None
    ) -> None:
        self.system = system
        self.temperature = temperature
        self.turns: list[dict[str, str]] = []
        self._connection = connection
        self._model = model
        self._max_tokens = max_tokens

    def messages(self) -> list[dict[str, str]]:
        """Return the system prompt, if there is one, and the turns."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def answer(self, text: str) -> Generator[str]:
        """Send the text, and yield the pieces of the answer. The received part of a stopped answer is kept; a request
        without an answer is not.
        """
        self.turns.append({"role": "user", "content": text})
        options = {"temperature": self.temperature, "max_tokens": self._max_tokens}
        given = {name: value for name, value in options.items() if value is not None}
        body = {"model": self._model, "messages": self.messages(), **given}
        received = ""
        try:
            for event in self._connection.stream("/v1/chat/completions", body):
                for choice in event.get("choices") or []:
                    piece = choice.get("delta", {}).get("content") or ""
                    received += piece
                    yield piece
        finally:
            if received:
                self.turns.append({"role": "assistant", "content": received})
            else:
                self.turns.pop()

    def why(self) -> tuple[str, list[tuple[str, float]]]:
        """Return the reasons for the last token of the answer: a sentence, and the contribution of each token of the
        conversation to its logit. Raises CommandError if there is no answer, or if the server gives no reasons.
        """
        if not self.turns:
            raise CommandError("there is no answer yet")
        written = {"messages": self.messages(), "add_generation_prompt": False, "continue_final_message": True}
        ids = self._connection.ask("/tokenize", {"model": self._model, **written})["tokens"]
        body = {"model": self._model, "input": ids[:-1], "num_tokens": 1, "explain": True}
        reasons = self._connection.ask("/v1/next", body)["data"][0]["reasons"]
        words = [(part["token"], part["value"]) for part in reasons["parts"]]
        rest = [(f"({name})", value) for name, value in reasons["rest"].items()]
        target, versus = reasons["target"]["token"], reasons["versus"]["token"]
        return f"{target!r} rather than {versus!r}: {reasons['value']:+.2f}", words + rest


def print_answer(pieces: Iterator[str]) -> None:
    """Print an answer while it arrives: as Markdown on a terminal, otherwise as plain text. Complete blocks are printed
    at once, so that an answer may be longer than the terminal.
    """
    console = Console()
    if not console.is_terminal:
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)
        return
    block = ""
    with Live(console=console, transient=True, auto_refresh=False) as live:
        try:
            for piece in pieces:
                block += piece.translate(_UNPRINTED)
                if end := end_of_blocks(block):
                    console.print(Markdown(block[:end]))
                    block = block[end:]
                live.update(Text("\n".join(block.splitlines()[2 - console.height :])), refresh=True)
        finally:
            live.update(Text(), refresh=True)
            console.print(Markdown(block))


def end_of_blocks(text: str) -> int:
    """Return where the last complete block of a Markdown text ends: at an empty line outside fenced code."""
    end = at = 0
    is_fenced = False
    for line in text.splitlines(keepends=True):
        at += len(line)
        is_fenced ^= line.lstrip().startswith(("```", "~~~"))
        if not is_fenced and line == "\n":
            end = at
    return end


def converse(conversation: Conversation) -> None:
    """Read lines from the terminal and answer them until /exit or Ctrl-D."""
    from prompt_toolkit import PromptSession  # here: `run` does not need it
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    words = WordCompleter(list(_HELP), sentence=True)
    try:
        history: History = FileHistory(str(history_file()))
    except OSError:  # a read-only or missing home
        history = InMemoryHistory()
    session: PromptSession[str] = PromptSession(history=history, completer=words)
    console = Console()
    console.print("Write a message, or /help. Ctrl-D ends.", style="dim")
    while True:
        try:
            line = session.prompt("> ", complete_while_typing=False).strip()
            if line == "/exit":
                return
            if line.startswith("/"):
                console.print(_command(conversation, *line.split(maxsplit=1)))
            elif line:
                with contextlib.closing(conversation.answer(line)) as pieces:
                    print_answer(pieces)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        except CommandError as error:
            console.print(Text(str(error), style="red"))


def history_file() -> Path:
    """Return the file of the lines that were typed, which only its owner may read."""
    state = os.environ.get("XDG_STATE_HOME")
    file = (Path(state) if state else Path.home() / ".local" / "state") / "lightwell" / "chat_history"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(mode=0o600)
    return file


def _command(conversation: Conversation, name: str, value: str = "") -> Text:
    match name:
        case "/system":
            if value:
                conversation.system = value
                conversation.turns.clear()
            return Text(f"system: {conversation.system or 'none'}")
        case "/temperature":
            if value:
                conversation.temperature = _temperature(value)
            return Text(f"temperature: {'default' if conversation.temperature is None else conversation.temperature}")
        case "/why":
            sentence, parts = conversation.why()
            most = max(abs(value) for _, value in parts) or 1.0
            rows = [
                (f"{token!r:>16} {part:+7.2f} ", "█" * round(_BAR * abs(part) / most), part) for token, part in parts
            ]
            return Text("\n").join(
                [
                    Text(sentence),
                    *(Text.assemble(row, (bar, "green" if part > 0 else "red")) for row, bar, part in rows),
                ]
            )
        case "/clear":
            conversation.turns.clear()
            return Text("the conversation starts again")
        case "/help":
            return Text("\n".join(f"{command:<14}{text}" for command, text in _HELP.items()))
    raise CommandError(f"{name} is not a command{did_you_mean(name, _HELP)} (/help lists them)")


def _temperature(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise CommandError(f"temperature {text!r} is not a number from 0 to 100")
    return number
