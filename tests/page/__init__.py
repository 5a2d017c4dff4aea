"""The page in a real browser: what a person sees and does, compared with what the API answers."""
