"""Inspection routes: attention, traces, weights, interventions. They read requests and write answers, without
computation.
"""
