"""The server: its command line, its processes, its routes and its engine. What a model computes is in `model/`."""
