"""The network from tokens to hidden states, block by block or fused. Independent of requests, files and processes."""
