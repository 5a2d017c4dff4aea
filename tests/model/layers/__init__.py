"""Tests of model/layers."""
