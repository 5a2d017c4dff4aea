"""Provides what operators see: metrics, logs, the access log and traces. It never changes an answer."""
