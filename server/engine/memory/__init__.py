"""How much memory there is, and what is done when there is none. It never runs the network."""
