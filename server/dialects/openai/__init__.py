"""Routes for OpenAI's clients. They read requests and write answers, without computation."""
