"""Tests of model/hooks."""
