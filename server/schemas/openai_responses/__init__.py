"""Pydantic schemas of the body and the answer of POST /v1/responses. The routes check what the model limits."""
