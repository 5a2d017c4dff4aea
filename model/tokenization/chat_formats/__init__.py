"""Formats of chat templates beyond text: reasoning and calls. Independent of requests."""
