"""Entry point of `python -m lightwell`, the same as `lightwell`."""

import sys

from lightwell.command import main

if __name__ == "__main__":
    sys.exit(main())
