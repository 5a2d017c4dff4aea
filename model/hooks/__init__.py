"""Captures and changes of named numbers during a forward pass. Independent of requests."""
