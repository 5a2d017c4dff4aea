"""Measurements that need time or a quiet machine. Run as `python -m benchmarks.NAME`.

Nothing here is imported by the server.
"""
