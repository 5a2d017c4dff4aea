"""Tests of server/engine/execution."""
