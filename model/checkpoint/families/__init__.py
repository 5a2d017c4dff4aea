"""One file for each family of networks, or for a few that are near kin: how its config.json is read and where its
weights stand. To add a family, add a file with a `Family` and name it in model/checkpoint/registry.py.
"""
