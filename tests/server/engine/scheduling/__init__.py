"""Tests of server/engine/scheduling."""
