"""Configuration by operators: settings, devices, memory and arithmetic. It serves no requests."""
