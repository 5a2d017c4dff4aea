"""The routes that look inside the model: attention, traces, weights, interventions. They read a request and write an
answer, and never compute.
"""
