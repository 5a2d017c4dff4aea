"""Runs one model in several processes: the leader and its followers. It never decides what a request gets."""
