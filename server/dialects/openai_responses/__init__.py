"""The route POST /v1/responses for OpenAI's newer clients. It reads requests and writes answers, without
computation.
"""
