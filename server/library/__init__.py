"""The library: `LLM`, a model in the caller's process with the methods of the Python client."""
