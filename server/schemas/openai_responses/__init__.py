"""Pydantic schemas of the body and the answer of POST /v1/responses. The routes check the limits of the model."""
