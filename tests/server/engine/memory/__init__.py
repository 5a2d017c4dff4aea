"""Tests of server/engine/memory."""
