"""An engine whose network runs in several processes. It never decides what they compute."""
