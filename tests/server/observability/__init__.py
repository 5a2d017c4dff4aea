"""Tests of server/observability."""
