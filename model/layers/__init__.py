"""The layers of a network in torch, one idea in each file. Independent of the network around them."""
