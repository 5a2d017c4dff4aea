"""Runs a batch: the network, the sampler, warm-up, and what happens when a step fails. It never decides which
requests run.
"""
