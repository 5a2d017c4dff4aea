"""Carries what crosses the socket between the API process and the workers. It never knows what a message causes."""
