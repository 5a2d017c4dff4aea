"""Says whether Triton interprets kernels on the CPU, which is how they are tested without a card."""

import os

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted. Then `tl.dot` multiplies the bit patterns of bfloat16 numbers: widen them first."""
