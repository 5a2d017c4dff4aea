"""The API process's end of the engine: admits requests, sends each to a worker and follows it. It never computes, and
knows no HTTP.
"""
