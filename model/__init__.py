"""Models: what a model is and computes, in torch and in kernels of our own. It never knows requests, servers or
HTTP.
"""
