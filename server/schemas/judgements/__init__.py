"""Pydantic schemas of the bodies and answers of questions, scores and labels. The routes check the limits of the
model."""
