"""Runs `lightwell serve [flags]`: `python -m tests.server.lightwell_command [flags]`."""

import sys

from lightwell.server.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
