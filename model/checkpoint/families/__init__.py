"""Families of networks: readers of config.json and weight tables, one file for each kind of network. To add a family,
add a file with a `Family` and name it in model/checkpoint/registry.py.
"""
