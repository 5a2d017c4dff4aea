"""A server in the caller's process, without HTTP: the routes run in one thread, and the engine in another."""
