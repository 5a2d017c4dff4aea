"""Starts, watches and ends the server's processes, with LitServe behind one file. It never reads a request."""
