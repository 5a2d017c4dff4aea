"""Mutation check: planted faults, and the program that runs the tests against each (`make mutants`)."""
