"""Turns text and chats into token ids, and ids into text. It never knows weights, and needs no torch."""
