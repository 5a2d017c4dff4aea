"""Kernels for a GPU, in Triton, and thin typed Python over them. Independent of the network."""
