"""Reader of GGUF files: presents a file as a folder like any other checkpoint, and reads its weights."""
