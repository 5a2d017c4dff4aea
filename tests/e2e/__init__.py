"""The whole server as users meet it: a real process, real sockets, clients that are not ours."""
