"""Memory: measurement, and reactions to its shortage. It runs no network."""
