"""Tests of the soak: that its books find what is wrong, and that a short one finds nothing."""
