"""Scheduler: chooses the sequences of the next step and their blocks of the cache. It uses only numbers: no tensor, no
clock.
"""
