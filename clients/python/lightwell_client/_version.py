"""The version of the client, which the package builder reads too."""

__version__ = "0.2.0"
