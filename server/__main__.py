"""Entry point of `python -m server`, the same as `lightwell`."""

import sys

from lightwell_command import main

if __name__ == "__main__":  # a spawned worker imports this module again, under another name
    sys.exit(main())
