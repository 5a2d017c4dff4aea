"""The layers of a network in torch, one idea to a file. They never know which network they are part of."""
