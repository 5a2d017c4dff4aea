"""The network from tokens to hidden states, block by block or fused. It never knows requests, files or processes."""
