"""Turns schemas, patterns and grammars into what llguidance reads, and says which tokens may follow. It never knows
requests.
"""
