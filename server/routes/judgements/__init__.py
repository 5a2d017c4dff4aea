"""The routes that answer questions by the probability of each option. They read a request and write an answer, and
never compute.
"""
