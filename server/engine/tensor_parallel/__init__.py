"""Runs an engine whose network is spread over several processes. It never decides what they compute."""
