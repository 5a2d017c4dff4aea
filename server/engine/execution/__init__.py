"""Execution of a batch: network, sampler, warm-up, and handling of failed steps. Independent of the choice of
requests.
"""
