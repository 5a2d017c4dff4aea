"""Measures the routes that judge: decisions."""
