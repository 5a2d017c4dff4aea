"""The page in a real browser: what a person sees and does, held against what the API answers."""
