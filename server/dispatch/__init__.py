"""The API process's side of the engine: admits requests, sends each to a worker and follows it. Independent of HTTP,
without computation.
"""
