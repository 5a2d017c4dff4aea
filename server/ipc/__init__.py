"""Messages between the API process and the workers. Independent of their effects."""
