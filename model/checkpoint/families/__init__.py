"""Families of networks: one file for each, or for a few that are closely related, says how its config.json is read and
what its weights are called. To add a family, add a file with a `Family` and name it in model/checkpoint/registry.py.
"""
