"""HTTP in general: connections, errors, events, tensors, headers. Independent of the routes."""
