"""Tests of the card's kernels. Without a card Triton interprets them (tests/conftest.py)."""
