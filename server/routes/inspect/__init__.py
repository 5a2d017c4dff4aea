"""The inspection routes: attention, traces, weights, interventions. They read a request and write an answer, and
never compute.
"""
