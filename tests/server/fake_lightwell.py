"""Runs `lightwell serve [flags]` around the fake engine: `python -m tests.server.fake_lightwell [flags]`."""

import os
import sys

from lightwell.server.cli import build_parser
from lightwell.server.config.command_line import from_arguments
from lightwell.server.lifecycle.app import serve

if __name__ == "__main__":
    settings = from_arguments(build_parser().parse_args(["serve", *sys.argv[1:]]), os.environ)
    serve(settings, engine_factory="tests.server.fake_engine:FakeEngine.from_folder")
