"""Launch of a kernel before the previous one has ended, on GPUs that support it (programmatic dependent launch in the
CUDA programming guide): its programs are then ready and wait, instead of starting one launch later.

Such a kernel calls `wait_for_kernels_ahead` before it reads or writes memory, and is launched with `launch_options`.
All of these kernels wait, so a kernel ends only after all kernels ahead of it.
"""

import torch
import triton
import triton.language as tl

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED

CAPABILITY = 9
"""The lowest major compute capability of GPUs that support it."""


@triton.jit
def wait_for_kernels_ahead(DEPENDENT: tl.constexpr):
    """Allow the launch of the next kernel, and wait until the results of all kernels ahead can be read."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


def launch_options(device: torch.device) -> dict[str, bool]:
    """Return the arguments of a launch on a device."""
    if IS_INTERPRETED or torch.cuda.get_device_capability(device)[0] < CAPABILITY:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}
