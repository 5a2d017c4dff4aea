"""The server: its command line, processes, routes and engine. The computation of models is in `model/`."""
