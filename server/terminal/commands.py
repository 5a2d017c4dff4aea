"""The command line of the terminal's commands: their options, and the results that they print. An option that is also a
setting of the server is declared by the setting.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from lightwell.server.config.command_line import Parser, add_flags
from lightwell.server.config.setting_names import flag_name
from lightwell.server.config.settings import Settings
from lightwell.server.terminal.command_errors import UsageError

if TYPE_CHECKING:
    from lightwell.server.terminal.chat import Conversation

MODEL_HELP = "model folder, GGUF file, or a hub id such as org/name, as `lightwell serve` takes it"
_OF_THE_HUB = ("gguf_file", "revision")
OF_THE_MODEL = (
    *_OF_THE_HUB, "chat_template", "dtype", "quantize", "device", "threads", "max_model_len", "kv_cache_memory",
)  # fmt: skip
"""Settings of the commands that load a model."""
OF_THE_PROGRAM = (*_OF_THE_HUB, "dtype", "quantize", "device")
"""Settings of `lightwell program`."""


def add_commands(add: Callable[..., Parser], build_parser: Callable[[], Parser]) -> None:
    """Add the commands. add: adds a command by its function, which returns the text to print or None, and its name.
    build_parser: returns the complete parser.
    """

    def command(name: str, result: Callable[[argparse.Namespace], str | None], text: str) -> Callable[..., object]:
        parser = add(result, name, help=text, description=f"{text[0].upper()}{text[1:]} (docs/terminal.md).")
        if name in ("chat", "run"):
            _add_answers(parser)
        elif name in ("pull", "program"):
            add_flags(parser, _OF_THE_HUB if name == "pull" else OF_THE_PROGRAM)
        return parser.add_argument

    option = command("chat", _chat, "talk to a model in the terminal")
    option("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP} (smollm2)")
    option = command("run", _run, "print the answer to a prompt, to which text on standard input is added")
    option("model", metavar="MODEL", help=MODEL_HELP)
    option("prompt", nargs="?", metavar="PROMPT", help="the prompt")
    option = command("pull", _pull, "download a model from the Hugging Face hub, and print its path")
    option("model", metavar="MODEL", help="hub id such as org/name")
    option = command("list", _list, "list the models of this machine")
    option("--json", action="store_true", help="write JSON")
    option = command("program", _program, "print the steps of a model's network, and the executor of each")
    option("model", nargs="?", default="smollm2", metavar="MODEL", help=f"{MODEL_HELP} (smollm2)")
    option = command("bench", _bench, "measure the speed of a server with an OpenAI-compatible API")
    option("url", metavar="URL", help="address of the server, such as http://127.0.0.1:8000")
    option("--model", metavar="NAME", help="name of the model on the server (its first)")
    option("--requests", type=_positive, default=32, metavar="N", help="requests in all (32)")
    option("--concurrency", type=_positive, default=4, metavar="N", help="requests at a time (4)")
    option("--prompt-words", type=_positive, default=64, metavar="N", help="words of each prompt (64)")
    option("--max-tokens", type=_positive, default=64, metavar="N", help="most tokens of each answer (64)")
    option("--api-key", metavar="KEY", help="API key of the server (variable: OPENAI_API_KEY)")
    option("--json", action="store_true", help="write JSON")
    option = command("completion", lambda given: _completion(build_parser(), given.shell), "print a completion script")
    option("shell", choices=("bash", "zsh"), help="the shell that completes `lightwell` with it")


def _add_answers(parser: Parser) -> None:
    option = parser.add_argument
    option("--url", metavar="URL", help="use the server at this address; MODEL is the model's name there")
    option("--api-key", metavar="KEY", help="API key of that server (variable: OPENAI_API_KEY)")
    option("--system", metavar="TEXT", help="system prompt")
    option("--temperature", type=float, metavar="NUMBER", help="temperature; 0 is greedy (the model's default)")
    option("--max-tokens", type=_positive, metavar="N", help="most tokens of an answer")
    add_flags(parser, OF_THE_MODEL)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not usable; an integer of at least 1 is accepted")
    return int(text)


@contextlib.contextmanager
def _conversation(arguments: argparse.Namespace) -> Iterator["Conversation"]:
    """Yield a conversation with the server of --url, or with a server of this command."""
    from rich.console import Console

    from lightwell.server.terminal.chat import Conversation
    from lightwell.server.terminal.child_server import child_server
    from lightwell.server.terminal.connection import Connection

    flags = {name: cast("str | None", getattr(arguments, name)) for name in OF_THE_MODEL}
    Settings.from_sources({name: value for name, value in flags.items() if value is not None}, {})  # checks the values
    with contextlib.ExitStack() as until_end:
        if arguments.url is not None:
            connection = Connection(arguments.url, arguments.api_key)
        else:
            given = [f"{flag_name(name)}={value}" for name, value in flags.items() if value is not None]
            with Console(stderr=True).status("loading the model"):  # on a terminal only
                connection = until_end.enter_context(child_server(arguments.model, given))
        model = arguments.model if arguments.url and arguments.model else connection.model()
        yield Conversation(connection, model, arguments.system, arguments.temperature, arguments.max_tokens)


def _chat(arguments: argparse.Namespace) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`lightwell chat` needs a terminal; `lightwell run` reads standard input")
    from lightwell.server.terminal.chat import converse

    with _conversation(arguments) as conversation:
        converse(conversation)


def _run(arguments: argparse.Namespace) -> None:
    prompt = arguments.prompt or ""
    if sys.stdin is not None and not sys.stdin.isatty():
        prompt = f"{prompt}\n\n{sys.stdin.read()}".strip()
    if not prompt:
        raise UsageError("the prompt is missing; an argument or text on standard input is accepted")
    from lightwell.server.terminal.chat import print_answer

    with _conversation(arguments) as conversation, contextlib.closing(conversation.answer(prompt)) as pieces:
        print_answer(pieces)


def _pull(arguments: argparse.Namespace) -> str:
    from lightwell.model.checkpoint.resolve import resolve

    return str(resolve(arguments.model, arguments.gguf_file, arguments.revision))


def _list(arguments: argparse.Namespace) -> str:
    from lightwell.server.terminal import models

    found = models.local_models()
    return json.dumps(found, indent=2) if arguments.json else models.as_table(found)


def _program(arguments: argparse.Namespace) -> str:
    from lightwell.server.terminal.program import program_of

    flags = {name: cast("str | None", getattr(arguments, name)) for name in OF_THE_PROGRAM}
    return program_of(arguments.model, {name: value for name, value in flags.items() if value is not None})


def _bench(arguments: argparse.Namespace) -> str:
    from lightwell.server.terminal import bench
    from lightwell.server.terminal.connection import Connection

    connection = Connection(arguments.url, arguments.api_key)
    model = arguments.model or connection.model()
    measurement = bench.Bench(connection, model, arguments.prompt_words, arguments.max_tokens)
    found = measurement.measure(arguments.requests, arguments.concurrency)
    return json.dumps(found, indent=2) if arguments.json else bench.as_text(found)


def _completion(parser: Parser, shell: str) -> str:
    import shtab

    commands = next(action for action in parser._actions if isinstance(action.choices, dict))
    for command in cast("dict[str, Parser]", commands.choices).values():
        for action in command._actions:
            if "|" in str(action.metavar):
                action.choices = [word for word in str(action.metavar).split("|") if not word.isupper()]
            elif action.metavar in ("FILE", "MODEL", "CONFIG", "DIR"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))
