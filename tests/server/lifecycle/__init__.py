"""Tests of server/lifecycle."""
