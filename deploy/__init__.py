"""Deploys the server elsewhere; holds Python code if that needs it."""
