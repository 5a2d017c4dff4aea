"""Tests of server/worker."""
