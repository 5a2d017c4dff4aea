"""Reads GGUF files: turns one into a folder that is read like any other checkpoint, and reads its weights."""
