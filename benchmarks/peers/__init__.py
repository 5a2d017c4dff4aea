"""Other engines on the same checkpoint: how each is installed, started and requested."""
