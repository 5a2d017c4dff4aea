"""Conversion between text or chats and token ids. Independent of weights; needs no torch."""
