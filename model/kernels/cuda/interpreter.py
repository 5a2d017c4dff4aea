"""Whether Triton interprets kernels on the CPU, as in tests without a GPU."""

import os

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True if kernels are interpreted. `tl.dot` then multiplies the bit patterns of bfloat16 numbers: widen them first."""
