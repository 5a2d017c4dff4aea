"""Pydantic schemas of every route: types and bounds that need no model. The routes check the limits of the model."""
