"""The kernels of the CPU: C++ under `cpu/`, compiled when the package is built, and thin typed Python over it.

Knows arrays and tensors; never knows layers, networks or requests.
"""
