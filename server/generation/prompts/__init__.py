"""Prompts: bodies to token ids, within the limits of the model. Independent of the engine."""
