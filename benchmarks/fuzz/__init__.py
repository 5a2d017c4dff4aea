"""Sends broken, odd and hostile HTTP over raw sockets: `python -m benchmarks.fuzz`. Runs kernels and readers of
checkpoints with sanitizers: `python -m benchmarks.fuzz.memory`.
"""
