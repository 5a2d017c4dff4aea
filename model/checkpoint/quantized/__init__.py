"""Readers of quantised matrices, in the formats named in config.json. It runs no network."""
