"""Tests of server/engine/tensor_parallel."""
