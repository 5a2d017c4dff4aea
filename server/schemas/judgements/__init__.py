"""Pydantic schemas of the bodies and answers of questions with options. The routes check what the model limits."""
