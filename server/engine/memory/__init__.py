"""Measures how much memory there is, and decides what to do when there is none. It never runs the network."""
