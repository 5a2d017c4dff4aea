"""Starts, watches and ends the server's processes. It never reads a request."""
