"""Runs one model in several processes: the leader and those who follow it. It never decides what a request gets."""
