"""Models: configuration and computation of networks, in torch and in Lightwell's kernels. Independent of requests,
servers and HTTP.
"""
