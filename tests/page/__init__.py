"""The page in a real browser: its contents and controls, compared with the API's answers."""
