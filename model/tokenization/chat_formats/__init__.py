"""Reads and writes what families of chat templates do beyond text: reasoning and calls. It never knows requests."""
