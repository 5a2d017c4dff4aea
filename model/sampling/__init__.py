"""Choice of tokens from logits, with their probabilities. Independent of requests."""
