"""Tests of server/config/auth."""
