"""Kernels for the CPU: C++ under `cpu/`, compiled when the package is built, and thin typed Python over it.

Their arguments are arrays and tensors. They are independent of layers, networks and requests.
"""
