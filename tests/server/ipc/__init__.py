"""Tests of server/ipc."""
