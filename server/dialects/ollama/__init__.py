"""Routes for Ollama's clients. They read requests and write answers, without computation."""
