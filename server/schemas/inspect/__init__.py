"""Pydantic schemas of the inspection routes' bodies, queries and answers. The routes check what the model limits."""
