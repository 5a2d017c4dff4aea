"""Pydantic schemas of every route: types and bounds that need no model. The routes check what the model limits."""
