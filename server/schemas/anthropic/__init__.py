"""Pydantic schemas of the bodies and answers of Anthropic's API. The routes check what the model limits."""
