"""Lets a kernel be launched before the one ahead of it has ended, where the card can (programmatic dependent launch of
the CUDA programming guide): its programs then stand ready and wait, instead of being started one launch later.

A kernel that takes part calls `wait_for_kernels_ahead` before it reads or writes anything, and is launched with
`launch_options`. All of them wait: so a kernel ahead has ended only after all that were ahead of it.
"""

import torch
import triton
import triton.language as tl

from model.kernels.cuda.interpreter import IS_INTERPRETED

CAPABILITY = 9
"""The lowest major compute capability of the cards that can."""


@triton.jit
def wait_for_kernels_ahead(DEPENDENT: tl.constexpr):
    """Let the next kernel be launched, and wait until those ahead have ended and what they wrote can be read."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


def launch_options(device: torch.device) -> dict[str, bool]:
    """Return the arguments of a launch on a device."""
    if IS_INTERPRETED or torch.cuda.get_device_capability(device)[0] < CAPABILITY:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}
