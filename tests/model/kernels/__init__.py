"""The compiled kernels of the CPU, against plain torch and at every level that this machine has."""
