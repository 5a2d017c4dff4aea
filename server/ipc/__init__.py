"""Messages between the main process, the workers and the API processes. Independent of their effects."""
