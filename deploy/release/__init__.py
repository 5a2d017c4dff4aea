"""Tries, before a release, everything that it needs and that is easily forgotten. It publishes nothing."""
