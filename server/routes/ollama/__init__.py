"""The routes that Ollama's clients know. They read a request and write an answer, and never compute."""
