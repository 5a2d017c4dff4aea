"""Routes for Anthropic's clients. They translate requests and write answers, without computation."""
