"""Tests of model/inside."""
