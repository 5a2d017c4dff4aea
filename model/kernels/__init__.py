"""Kernels for the CPU: C++ under `cpu/`, compiled when the package is built, and thin typed Python over it.

They know arrays and tensors; they never know layers, networks or requests.
"""
