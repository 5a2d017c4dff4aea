"""Checks of structured outputs that are too long for tests: the official suite of JSON schema, and hostile schemas."""
