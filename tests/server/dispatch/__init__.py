"""Tests of server/dispatch."""
