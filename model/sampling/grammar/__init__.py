"""Grammars from schemas and patterns, and the tokens that may follow in them. Independent of requests."""
