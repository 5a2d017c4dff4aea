"""Turns schemas and patterns into grammars, and says which tokens may follow in one. It never knows requests."""
