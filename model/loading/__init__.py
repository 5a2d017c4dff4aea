"""Construction of a network from a checkpoint's weights, without computation."""
