"""The command `lightwell`: reads the command line and hands over. It imports nothing heavy until it serves.

Exit status: 0 after a drained end, 1 when the command failed, 2 for a command line that makes no sense, 130 after
Ctrl-C.
"""

import argparse
import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.model.checkpoint.resolve import local_path
from lightwell.model.tokenization.template_client import shared_client
from lightwell.server.config.auth.keys import KeyFileError, key_entry, new_key
from lightwell.server.config.command_line import (
    Parser,
    add_arguments,
    add_flags,
    deprecations,
    from_arguments,
    unknown_variables,
)
from lightwell.server.config.setting_names import ENV_PREFIX, variable_name
from lightwell.server.config.settings import Settings, SettingsError, setting_names
from lightwell.server.lifecycle import worker_process
from lightwell.server.observability.version import lightwell_version
from lightwell.server.terminal.command_errors import CommandError, UsageError
from lightwell.server.terminal.commands import MODEL_HELP, OF_THE_MODEL, add_commands


def build_parser() -> Parser:
    parser = Parser(prog="lightwell", description="Serve transformer models: text, attention patterns and embeddings.")
    parser.add_argument("--version", action="version", version=f"lightwell {lightwell_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(result: Callable[[argparse.Namespace], int | str | None], name: str = "", **texts: Any) -> Parser:
        command = commands.add_parser(name or result.__name__, allow_abbrev=False, **texts)
        command.set_defaults(result=result)
        return command

    command = add(
        serve, help="serve a model", description="Serve a model over HTTP. A flag overrides its LIGHTWELL_* variable."
    )
    add_arguments(command)
    command = add(
        census,
        help="count a model's parameters",
        description="Count a model's parameters by component, from its configuration; no weights are read.",
    )
    command.add_argument("config", metavar="CONFIG", help="a config.json, a folder with one, or a hub id")
    command.add_argument("--json", action="store_true", help="write JSON like GET /v1/models/{id}/parameters")
    command = add(
        size,
        help="estimate the memory of a server",
        description="Estimate the memory of `lightwell serve` with the same flags on a CPU, from the model's "
        "configuration (docs/sizing.md).",
    )
    add_arguments(command)
    command = add(
        perplexity,
        help="measure the perplexity of a text",
        description="Measure the perplexity of a text in windows of 512 tokens. With --against, also the KL "
        "divergence of two models and the share of positions with the same likeliest token.",
    )
    command.add_argument("model", nargs="?", metavar="MODEL", help="a model, as in `lightwell serve`")
    add_flags(command, ("dtype", "quantize", "activations"))
    command.add_argument("--text", metavar="FILE", required=True, help="a UTF-8 text file")
    command.add_argument("--against", metavar="MODEL", help="model with the same vocabulary, never quantised")
    command.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="largest number of tokens (4096)")
    command = add(
        kernels,
        help="show the kernels of this machine",
        description="Show the kernels that a server on this machine uses: the CPU level and the multiplication by "
        "bfloat16 weights (docs/reference.md).",
    )
    add_flags(command, ("kernels", "kernel_arithmetic", "threads"))
    command.add_argument(
        "--measure", action="store_true", help="time products on one thread and print a line for the table of CPUs"
    )
    command.add_argument("--json", action="store_true", help="write JSON")
    command = add(
        key,
        help="create an API key",
        description="Create a random API key. The key is printed once to stderr, its entry for --api-key-file to "
        "stdout: lightwell key NAME >> keys.toml",
    )
    command.add_argument("name", metavar="NAME", help="name of the key in logs, metrics and GET /admin/keys")
    command.add_argument("--admin", action="store_true", help="permit /admin/...")
    add(
        health,
        help="check whether the server is ready",
        description="Check whether the `lightwell serve` in this container or on this machine is ready, at the "
        "address of its flags or variables. The exit status is 0 if it is ready, otherwise 1.",
    )
    _add_batches(add)
    add_commands(add, build_parser)
    return parser


def _add_batches(add: Callable[..., Parser]) -> None:
    for name, like in (("batch", ""), ("run-batch", ", with vLLM's options")):
        text = f"answer a file of requests in OpenAI's batch format{like}"
        command = add(batch, name, help=text, description=f"A{text[1:]} (docs/terminal.md).")
        for dest, role in (("input", "requests"), ("output", "answers; a job that ended early is continued")):
            options: dict[str, Any] = {"metavar": dest.upper(), "help": f"JSONL file of {role}"}
            if name == "batch":
                command.add_argument(dest, **options)
            else:
                command.add_argument(f"-{dest[0]}", f"--{dest}-file", dest=dest, required=True, **options)
        command.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP} (smollm2)")
        add_flags(command, (*OF_THE_MODEL, "max_num_seqs"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        result: int | str | None = arguments.result(arguments)
        if isinstance(result, int):
            return result
        return 0 if result is None else print_text(result)
    except (SettingsError, KeyFileError, UsageError) as error:
        return fail(str(error), 2)
    except (ModelLoadError, CommandError) as error:
        return fail(str(error), 1)
    except BrokenPipeError:
        return no_reader()
    except KeyboardInterrupt:
        return 130


def serve(arguments: argparse.Namespace) -> int | None:
    """Serve a model. Returns the exit status if it is not 0."""
    settings = from_arguments(arguments, os.environ)
    arguments.api_key = None
    forget_keys()
    for name in unknown_variables(os.environ):
        near = did_you_mean(name, map(variable_name, setting_names()))
        say("warning", f"{name} is no setting{near} (`lightwell serve --help` lists them)", settings.log_format)
    for line in deprecations(settings):
        say("warning", line, settings.log_format)

    gc.disable()  # as in the workers, until `server.engine.memory.process_memory.freeze_garbage`
    with contextlib.suppress(OSError):  # the first chat request then reports it
        shared_client().start()  # in the background, during the imports below
    try:
        first = next(iter(settings.of_models()), None)
        path = None if first is None else local_path(first.source)
        if first is not None and path is not None and first.devices == 1:
            with contextlib.suppress(OSError):  # the worker's start then reports it
                worker_process.start_early(first.threads, path)
        from lightwell.server.lifecycle import app

        try:
            app.serve(settings)
        except app.ServeError as error:
            return fail(str(error), 1, settings.log_format)
        return None
    finally:
        worker_process.end_unused()


def census(arguments: argparse.Namespace) -> str:
    """Return the census of a configuration."""
    from lightwell.model.analysis import census_report
    from lightwell.model.analysis.census import take_census
    from lightwell.model.checkpoint import registry, resolve

    config = registry.read_config(resolve.resolve_config(arguments.config))
    counted = take_census(config)
    if arguments.json:
        return json.dumps({"architecture": config.architecture, **census_report.as_json(counted)}, indent=2)
    return census_report.as_table(counted, config)


def size(arguments: argparse.Namespace) -> str:
    """Return the memory estimate of each model of a server."""
    from lightwell.model.checkpoint import registry, resolve
    from lightwell.server.config import memory_estimate

    tables = []
    for settings in from_arguments(arguments, os.environ).of_models():
        file = resolve.resolve_config(settings.source or resolve.default_name(), settings.gguf_file, settings.revision)
        config = registry.read_config(file)
        found = memory_estimate.sizes(config, settings, file)
        name = settings.served_model_name or settings.source or resolve.default_name()
        tables.append((name, memory_estimate.as_table(found, settings, config.stored_as)))
    if not tables:
        raise UsageError(
            "the command needs a model; --models-dir is not enough; MODEL, or --model NAME=MODEL, is accepted"
        )
    return tables[0][1] if len(tables) == 1 else "\n\n".join(f"{name}:\n{table}" for name, table in tables)


def kernels(arguments: argparse.Namespace) -> str:
    """Return the kernels of this machine."""
    from lightwell.server.config import kernel_report

    settings = Settings.from_sources(vars(arguments), os.environ)
    report = kernel_report.make_report(settings, measured=arguments.measure)
    return json.dumps(kernel_report.as_json(report), indent=2) if arguments.json else kernel_report.as_table(report)


def perplexity(arguments: argparse.Namespace) -> str:
    """Return the perplexity of a text."""
    from pathlib import Path

    from lightwell.server.library import perplexity as measured

    if arguments.max_tokens < measured.LEAST_TOKENS:
        raise UsageError(f"--max-tokens: {arguments.max_tokens}; {measured.LEAST_TOKENS} or more is accepted")
    settings = Settings.from_sources(vars(arguments), os.environ)
    found = measured.measure(settings, Path(arguments.text), arguments.against, arguments.max_tokens)
    return measured.report(*found)


def batch(arguments: argparse.Namespace) -> str:
    """Answer a file of requests."""
    from pathlib import Path

    from tqdm import tqdm

    from lightwell.server.batches.job import Progress
    from lightwell.server.batches.lines import BatchError
    from lightwell.server.library.batch_file import run_file
    from lightwell.server.library.llm import settings_of

    flags = {name: getattr(arguments, name) for name in (*OF_THE_MODEL, "max_num_seqs")}
    settings = settings_of(arguments.model, {name: value for name, value in flags.items() if value is not None})
    with tqdm(unit="line", smoothing=0) as bar:

        def show(now: Progress) -> None:
            if bar.total is None:
                bar.reset(now.num_lines)
                bar.initial = bar.n = now.num_done
            rate = now.num_tokens / max(1e-9, bar.format_dict["elapsed"])
            bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
            try:
                bar.update(now.num_done - bar.n)
            except OSError:  # the reader has left
                bar.disable = True

        try:
            found = run_file(settings, Path(arguments.input), Path(arguments.output), show)
        except BatchError as error:
            raise CommandError(str(error)) from error
    return f"{found.num_done} lines are answered, {found.num_errors} of this run's with an error: {arguments.output}"


def key(arguments: argparse.Namespace) -> str:
    """Print a new key on stderr, and return its entry for the key file."""
    made = new_key()
    entry = key_entry(arguments.name, made, is_admin=arguments.admin)
    print(f"The key of {arguments.name}, shown this once:\n{made}", file=sys.stderr, flush=True)
    return f"\n{entry}".rstrip("\n")  # a blank line first: it is appended to other entries


def health(_: argparse.Namespace) -> None:
    """Raise CommandError if the server is not ready."""
    from lightwell.server.lifecycle.health_check import serve_arguments, why_not_ready

    settings = from_arguments(build_parser().parse_args(["serve", *serve_arguments()]), os.environ)
    problem = why_not_ready(settings.host, settings.port)
    if problem is not None:
        raise CommandError(problem)


def forget_keys() -> None:
    """Remove the plain keys from the environment and from sys.argv, which multiprocessing gives to the workers."""
    os.environ.pop(f"{ENV_PREFIX}API_KEY", None)
    for i, argument in enumerate(sys.argv):
        if argument.startswith("--api-key="):
            sys.argv[i] = "--api-key=..."
        elif i and sys.argv[i - 1] == "--api-key":
            sys.argv[i] = "..."


def print_text(text: str) -> int:
    """Print text on stdout, and return the exit status. A reader may leave early, as `head` does."""
    try:
        print(text, flush=True)
    except OSError as error:
        no_reader()
        return 0 if isinstance(error, BrokenPipeError) else fail(f"stdout: {error}", 1)
    return 0


def no_reader() -> int:
    """Drop the rest of stdout, which Python flushes again at its end, and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def fail(message: str, status: int, log_format: str = "text") -> int:
    """Print one line on stderr, and return the exit status."""
    say("error", message, log_format)
    return status


def say(level: str, message: str, log_format: str) -> None:
    """Print one line on stderr, after all that was logged, as text or in the log's JSON."""
    from lightwell.server.observability import logs

    logs.flush()
    message = " ".join(message.split())
    is_text = log_format == "text"
    shown = logs.in_colour(level, f"{level}:")
    print(f"lightwell: {shown} {message}" if is_text else logs.as_json(level, message), file=sys.stderr, flush=True)
