"""Tests of the soak: that its bookkeeping finds what is wrong, and that a short one finds nothing."""
