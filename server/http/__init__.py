"""Handles the bytes of any HTTP exchange: connections, errors, events, tensors, headers. It never knows a route."""
