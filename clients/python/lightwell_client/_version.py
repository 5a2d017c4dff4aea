"""The version of the client, read by the package builder too."""

__version__ = "0.1.0"
