"""The route that OpenAI's newer clients know, POST /v1/responses. It reads a request and writes an answer, and never
computes.
"""
