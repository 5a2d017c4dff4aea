"""Reads what operators set: settings, devices, and what memory and arithmetic follow from them. It never serves a
request.
"""
