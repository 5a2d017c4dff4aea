"""Tests of model/analysis."""
