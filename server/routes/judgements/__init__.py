"""The routes that answer by the probability of options, or by what a head says of texts. They read a request and write
an answer, and never compute.
"""
