"""The engine on Ray: an application of Ray Serve."""
