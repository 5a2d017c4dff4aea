"""Captures and interventions of running requests. Independent of their scheduling."""
