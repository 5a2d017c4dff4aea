"""Requests, tasks and outputs of the engine, as plain data that crosses between processes."""
