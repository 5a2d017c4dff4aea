"""The command `lightwell`: reads the command line and hands over. Imports nothing heavy until it serves.

Exit status: 0 after a drained end, 1 when the model cannot be served, 2 for a command line that makes no sense.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from server.settings import SettingsError, add_arguments, from_arguments, unknown_variables
from server.version import lightwell_version


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightwell", description="Serve a trained transformer: text, attention patterns and embeddings."
    )
    parser.add_argument("--version", action="version", version=f"lightwell {lightwell_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model",
        description="Serve a model over HTTP. A flag wins over its LIGHTWELL_* variable.",
        allow_abbrev=False,
    )
    add_arguments(serve)
    census = commands.add_parser(
        "census",
        help="count a model's parameters",
        description="Count a model's parameters by component, from its configuration alone; no weights are read.",
        allow_abbrev=False,
    )
    census.add_argument("config", metavar="CONFIG", help="a config.json, a folder that holds one, or a hub id")
    census.add_argument("--json", action="store_true", help="write JSON, as GET /v1/models/{id}/parameters answers")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "census":
        return census(arguments.config, as_json=arguments.json)
    try:
        settings = from_arguments(arguments, os.environ)
    except SettingsError as error:
        return fail(str(error), 2)
    for name in unknown_variables(os.environ):
        print(f"lightwell: warning: {name} is no setting; `lightwell serve --help` lists them", file=sys.stderr)

    from server.app import ServeError, serve

    try:
        return serve(settings)
    except ServeError as error:
        return fail(str(error), 1)


def census(name: str, *, as_json: bool) -> int:
    """Print the census of a configuration; the exit status."""
    from model import folder, registry
    from model.inside import census_report
    from model.inside.census import take_census

    try:
        config = registry.read_config(folder.resolve_config(name))
    except folder.ModelLoadError as error:
        return fail(str(error), 1)
    counted = take_census(config)
    if as_json:
        told = {"architecture": config.architecture, **census_report.as_json(counted)}
        return tell(json.dumps(told, indent=2))
    return tell(census_report.as_table(counted, config))


def tell(text: str) -> int:
    """Text on stdout; the exit status. A reader that leaves early, as `head` does, has what it wanted."""
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes stdout once more when it ends: what is left in it must find somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(error, BrokenPipeError) else fail(f"stdout: {error}", 1)
    return 0


def fail(message: str, status: int) -> int:
    """One line on stderr, and the exit status."""
    print(f"lightwell: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status
