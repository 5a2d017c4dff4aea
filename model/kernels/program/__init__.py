"""A decoder's program: typed steps as plain data, and their translation for the C++ kernels. It runs nothing."""
