"""Requests of every kind, without the names of any API: prompts, sampling, choices, tools, reasoning, grammars.

The routes of each API convert its bodies to them, and their results to its answers.
"""
