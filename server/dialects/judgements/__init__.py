"""Routes that answer by the probability of options, or by the scores of a model's head. They read requests and write
answers, without computation.
"""
