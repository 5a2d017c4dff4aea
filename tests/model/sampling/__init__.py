"""Tests of model/sampling."""
