"""Sends broken, odd and hostile HTTP over raw sockets: `python -m benchmarks.fuzz`."""
