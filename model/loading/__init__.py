"""Builds a network from a checkpoint's weights. It never computes with it."""
