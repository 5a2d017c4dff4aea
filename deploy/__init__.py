"""What brings the server up elsewhere; Python code where that needs it."""
