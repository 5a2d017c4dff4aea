"""Tests of model/tokenization."""
