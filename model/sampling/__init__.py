"""Chooses tokens from logits and says how likely each was. It never knows requests."""
