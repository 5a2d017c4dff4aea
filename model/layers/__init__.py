"""The layers of a network in torch, one idea in each file. They never know which network they are part of."""
