"""A worker process around its engine. Independent of HTTP and of its starter."""
