"""Pydantic schemas of the inspection routes' bodies, queries and answers. The routes check the limits of the model."""
