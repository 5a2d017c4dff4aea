"""Failures of the terminal's commands, in one line for the user."""


class CommandError(RuntimeError):
    """A command failed. http_status: the status of the refused request, or 0."""

    def __init__(self, message: str, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


class UsageError(CommandError):
    """The command line makes no sense."""
