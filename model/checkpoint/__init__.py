"""Turns other people's files into ours: a folder, its configuration and its weights by our names. It never runs a
network.
"""
