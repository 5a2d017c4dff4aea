"""Families of networks: one file for each, or for a few close relatives, reads config.json and names the weights. To
add a family, add a file with a `Family` and name it in model/checkpoint/registry.py.
"""
