"""Decides which sequences run in the next step, and which blocks of the cache each gets. It knows numbers only: no
tensor, no clock.
"""
