"""Reads matrices that checkpoints hold quantised, in the formats that config.json names. It never runs a network."""
