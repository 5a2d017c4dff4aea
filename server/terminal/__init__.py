"""Commands for people at a terminal: clients of a server, the models of this machine, and the greeting of a server. It
never answers a request.
"""
