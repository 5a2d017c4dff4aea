"""Reads and writes what chat templates do beyond text: reasoning and tool calls. It never knows requests."""
