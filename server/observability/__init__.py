"""Metrics, logs, the access log and traces. It changes no answer."""
