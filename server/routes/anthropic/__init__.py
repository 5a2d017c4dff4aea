"""The routes that Anthropic's clients know. They translate a request, write an answer, and never compute."""
