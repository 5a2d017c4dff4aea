"""Batch jobs: files of requests, their answers, and their folder. Independent of routes and of the engine."""
