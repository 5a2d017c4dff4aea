"""Tests of model/sharding."""
