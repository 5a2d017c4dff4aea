"""Pydantic schemas of Anthropic's bodies and answers. The routes check the limits of the model."""
