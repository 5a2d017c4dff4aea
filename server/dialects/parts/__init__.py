"""Decomposition of passes: contributions of words, heads and layers to the stream, to a logit and to a difference of
two. Independent of the routes.
"""
