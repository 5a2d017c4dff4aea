"""Takes passes apart: what each word, head and layer adds to the stream, to a logit and to the difference of two. It
knows no route.
"""
