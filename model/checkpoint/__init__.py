"""Readers of external files: a folder, its configuration and its weights under Lightwell's names. It runs no
network.
"""
