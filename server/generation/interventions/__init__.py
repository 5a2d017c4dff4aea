"""Interventions and captures of a request: layers, heads, positions and values, checked against the model."""
