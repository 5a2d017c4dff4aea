"""Reads and writes what families of chat templates do beyond text: reasoning and tool calls. It never knows requests."""
