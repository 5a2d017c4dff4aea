"""Defines which numbers of a forward pass are handed out or changed, and does it while the pass runs. It never knows
requests.
"""
