"""Says what the numbers of a forward pass, and the weights, mean: pure functions, each with the source of its
formula. It never runs a network.
"""
