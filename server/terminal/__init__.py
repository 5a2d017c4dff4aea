"""Commands at a terminal: clients of a server, the models of this machine, and the summary of a started server. They
answer no requests.
"""
