"""Authentication, quotas and rate limits of API keys. Independent of the engine."""
