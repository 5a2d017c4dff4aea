"""Tests of the soak: its bookkeeping finds errors, and a short soak finds none."""
