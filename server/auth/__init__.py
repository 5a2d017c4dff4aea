"""Says who may send requests, and how many: API keys, their quotas and rates. It never knows what a request
computes.
"""
