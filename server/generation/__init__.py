"""Requests for texts and vectors, without the names of any API: prompts to choices, tools, reasoning, grammars.

The routes of each API read its bodies and write its answers around them.
"""
