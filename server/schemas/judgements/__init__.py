"""Pydantic schemas of the bodies and answers of questions, scores and labels. The routes check what a model limits."""
