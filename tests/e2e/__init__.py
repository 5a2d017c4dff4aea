"""The whole server as users meet it: a real process, real sockets, clients of other projects."""
