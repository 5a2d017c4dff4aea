"""Analysis of forward passes and weights: pure functions, each with the source of its formula. It runs no network."""
