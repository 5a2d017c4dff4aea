"""`python -m tests.server.lightwell_command [flags]` is `lightwell serve [flags]`."""

import sys

from server.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
