"""The whole server as users meet it: a real process, real sockets, clients that we did not write."""
