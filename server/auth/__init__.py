"""Who may ask, and how much: API keys, their quotas and rates. It never knows what a request computes."""
