"""Kernels for a card, in Triton, and thin typed Python over them. They know tensors; they know no network."""
