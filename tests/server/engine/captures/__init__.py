"""Tests of server/engine/captures."""
