"""What the numbers of a forward pass, and the weights, say: pure functions. Each names the source of its formula."""
